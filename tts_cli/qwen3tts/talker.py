"""The talker: one decoder over prompt rows and frame embeddings, with a head over codebook 0."""

import torch
from torch import Tensor, nn

from tts_cli.qwen3tts.layers import Decoder, KVCache, StaticCache, TransformerConfig, linear, weight


class Talker(nn.Module):
    """Predicts codebook 0 of the next frame."""

    def __init__(self, config: TransformerConfig, codec_vocab: int, dtype: torch.dtype):
        super().__init__()
        self.decoder = Decoder(config, dtype)
        self.head = weight(codec_vocab, config.hidden, dtype=dtype)

    def prefill(self, rows: Tensor, cache: KVCache, prefix: KVCache | None = None) -> Tensor:
        """Read the prompt into an empty cache. rows [P, H] float32 -> last hidden [H] after the final norm.

        `prefix`: what `read` made of the first rows, which are then not read again.
        """
        known = prefix.length if prefix else 0
        if prefix:
            cache.reserve(known)
            cache.k[:, :, :known], cache.v[:, :, :known], cache.length = prefix.k, prefix.v, known
        return self.decoder(rows[known:], cache)[-1]

    def read(self, rows: Tensor) -> KVCache:
        """The cache of a prompt's first rows [P, H], to begin several utterances with."""
        cache = self.decoder.new_cache(len(rows))
        self.decoder(rows, cache)
        return cache

    def step(self, x: Tensor, cache: KVCache | StaticCache) -> Tensor:
        """One frame embedding [H] -> hidden [H] after the final norm."""
        return self.decoder(x, cache)

    def together(self, rows: Tensor, caches: list[KVCache]) -> Tensor:
        """`step` for several utterances at once: [n, H] -> [n, H]."""
        return self.decoder.together(rows, caches)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [H] or [n, H] -> codebook-0 logits [codec_vocab] or [n, codec_vocab], float32."""
        return linear(hidden, self.head)
