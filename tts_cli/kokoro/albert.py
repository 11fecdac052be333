"""PL-BERT: a phoneme-level ALBERT (Li et al. 2023, Lan et al. 2020), one post-norm layer passed many times."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.kokoro.config import PLBertConfig
from tts_cli.kokoro.layers import Embedding, LayerNorm, Linear

_EPS = 1e-12


class SharedLayer(nn.Module):
    def __init__(self, c: PLBertConfig):
        super().__init__()
        self.heads = c.heads
        self.query = Linear(c.hidden, c.hidden)
        self.key = Linear(c.hidden, c.hidden)
        self.value = Linear(c.hidden, c.hidden)
        self.attention_out = Linear(c.hidden, c.hidden)
        self.attention_norm = LayerNorm(c.hidden, _EPS)
        self.ffn_in = Linear(c.hidden, c.intermediate)
        self.ffn_out = Linear(c.intermediate, c.hidden)
        self.ffn_norm = LayerNorm(c.hidden, _EPS)

    def forward(self, x: Tensor) -> Tensor:
        """[n, hidden] -> [n, hidden]; every position sees every other."""
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(0, 1)[None]
                   for part in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
        x = self.attention_norm(x + self.attention_out(y))
        return self.ffn_norm(x + self.ffn_out(F.gelu(self.ffn_in(x), approximate="tanh")))


class PLBert(nn.Module):
    def __init__(self, tokens: int, config: PLBertConfig):
        super().__init__()
        c = self.config = config
        self.words = Embedding(tokens, c.embedding)
        self.positions = Embedding(c.positions, c.embedding)
        self.types = Embedding(2, c.embedding)  # all tokens are of type 0
        self.norm = LayerNorm(c.embedding, _EPS)
        self.expand = Linear(c.embedding, c.hidden)
        self.layer = SharedLayer(c)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [n] -> [n, hidden], n at most `positions`."""
        position = torch.arange(len(tokens), device=tokens.device)
        x = self.expand(self.norm(self.words(tokens) + self.positions(position) + self.types.weight[0]))
        for _ in range(self.config.passes):
            x = self.layer(x)
        return x
