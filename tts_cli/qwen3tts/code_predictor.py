"""The code predictor: from the talker's hidden state and codebook 0 to the other 15 codes of a frame."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tts_cli.qwen3tts.layers import Decoder, TransformerConfig, linear, weight
from tts_cli.qwen3tts.sampling import SamplingOptions, sample_rows


class CodePredictor(nn.Module):
    """A small decoder over 16 positions, new for every frame.

    It also owns the 16 codebook embeddings, which serve twice: as its own inputs and, summed, as the talker's next
    input. `projection` is absent where talker and predictor are equally wide (the 0.6B models).
    """

    def __init__(self, config: TransformerConfig, talker_hidden: int, codec_vocab: int, books: int, codes: int,
                 projection: bool, dtype: torch.dtype):
        super().__init__()
        self.decoder = Decoder(config, dtype)
        self.first_embedding = weight(codec_vocab, talker_hidden, dtype=dtype)
        self.embeddings = weight(books - 1, codes, talker_hidden, dtype=dtype)
        self.heads = weight(books - 1, codes, config.hidden, dtype=dtype)
        self.projection = weight(config.hidden, talker_hidden, dtype=dtype) if projection else None
        self.projection_bias = weight(config.hidden) if projection else None

    def project(self, x: Tensor) -> Tensor:
        """Talker width [..., H] -> predictor width [..., CH], float32."""
        return x.float() if self.projection is None else linear(x, self.projection, self.projection_bias)

    def predict(self, hidden: Tensor, first: Tensor, options: Sequence[SamplingOptions], uniforms: Tensor) -> Tensor:
        """One frame each of n utterances: hidden [n, H], first = codes of book 0 int64 [n], uniforms [n, 15] in [0, 1)
        -> codes int64 [n, 16].

        A code is -1 when its logits were not finite (an overflow at one position reaches all later ones).
        """
        caches = [self.decoder.new_cache(len(self.heads) + 1) for _ in options]
        start = torch.stack((hidden, self.first_embedding[first].float()), 1).flatten(0, 1)
        x = self.decoder.together(self.project(start), [cache for cache in caches for _ in range(2)])[1::2]
        codes = [first]
        for book, head in enumerate(self.heads):
            codes.append(sample_rows(linear(x, head), options, uniforms[:, book]))
            if book + 1 < len(self.heads):  # the last code is never an input
                x = self.decoder.together(self.project(self.embeddings[book, codes[-1]]), caches)
        return torch.stack(codes, 1)

    def embed_frame(self, codes: Tensor) -> Tensor:
        """The talker's input for frames: the sums of their 16 embeddings, codes int64 [..., 16] -> float32 [..., H].

        Summed in book order: another order changes greedy codes.
        """
        books = torch.arange(len(self.embeddings), device=codes.device)
        rows = torch.cat((self.first_embedding[codes[..., :1]], self.embeddings[books, codes[..., 1:]]), -2)
        return rows.movedim(-2, 0).float().sum(0)
