"""The speech tokenizer's encoder: 24 kHz sound to codes at 12.5 Hz (Mimi: Défossez et al. 2024).

Convolutions down to 25 Hz, a causal transformer, a last stride of two, and residual vector quantisation with one
semantic and 15 acoustic books. Everything is causal, so a clip is read in blocks and memory stays flat; float32.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.qwen3tts.layers import Rope, StreamState, rotate, weight


@dataclass(frozen=True)
class CodecEncoderConfig:
    """Channel counts come from tensor shapes, the rest from metadata."""

    filters: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    head_dim: int
    codebook_width: int
    codes: int
    books: int              # kept of each frame, the semantic one included
    strides: tuple[int, ...] = (4, 5, 6, 8)
    compress: int = 2
    kernel: int = 7
    last_kernel: int = 3
    residual_kernel: int = 3
    norm_eps: float = 1e-5
    rope_theta: float = 1e4

    @property
    def samples_per_frame(self) -> int:
        return 2 * math.prod(self.strides)  # the last stride is always two


class StridedConv(nn.Module):
    """Causal Conv1d over [C, L] to ceil(L / stride) columns; the missing columns at both ends are zeros or the edge."""

    slot: int  # its place in StreamState.tails

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = True,
                 repeat_edge: bool = False):
        super().__init__()
        self.weight = weight(outputs, inputs, kernel)
        self.bias = weight(outputs) if bias else None
        self.stride, self.past, self.repeat_edge = stride, kernel - stride, repeat_edge

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        if self.past:
            tail = state.tails.get(self.slot)
            if tail is None:
                tail = x[:, :1].expand(-1, self.past) if self.repeat_edge else x.new_zeros(len(x), self.past)
            x = torch.cat((tail, x), -1)
            state.tails[self.slot] = x[:, -self.past:].clone()
        missing = -(x.shape[-1] - self.past) % self.stride  # only in the last block of a clip
        if missing:
            edge = x[:, -1:].expand(-1, missing) if self.repeat_edge else x.new_zeros(len(x), missing)
            x = torch.cat((x, edge), -1)
        return F.conv1d(x[None], self.weight, self.bias, stride=self.stride)[0]


class Stage(nn.Module):
    """A residual unit with half the channels inside, then a strided convolution that doubles them."""

    def __init__(self, c: CodecEncoderConfig, channels: int, stride: int):
        super().__init__()
        self.squeeze = StridedConv(channels, channels // c.compress, c.residual_kernel)
        self.expand = StridedConv(channels // c.compress, channels, 1)
        self.down = StridedConv(channels, 2 * channels, 2 * stride, stride)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        x = x + self.expand(F.elu(self.squeeze(F.elu(x), state)), state)
        return self.down(F.elu(x), state)


class EncoderBlock(nn.Module):
    """Pre-norm transformer block with layer scales, LayerNorm with bias and an exact (erf) GELU; fully causal."""

    def __init__(self, c: CodecEncoderConfig):
        super().__init__()
        self.config = c
        inner = c.heads * c.head_dim
        self.attn_norm = weight(c.hidden)
        self.attn_norm_bias = weight(c.hidden)
        self.qkv = weight(3 * inner, c.hidden)
        self.attn_out = weight(c.hidden, inner)
        self.attn_scale = weight(c.hidden)
        self.ffn_norm = weight(c.hidden)
        self.ffn_norm_bias = weight(c.hidden)
        self.ffn_up = weight(c.intermediate, c.hidden)
        self.ffn_down = weight(c.hidden, c.intermediate)
        self.ffn_scale = weight(c.hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], state: StreamState, layer: int) -> Tensor:
        c, n = self.config, len(x)
        y = F.layer_norm(x, (c.hidden,), self.attn_norm, self.attn_norm_bias, c.norm_eps)
        q, k, v = F.linear(y, self.qkv).view(n, 3, c.heads, c.head_dim).unbind(1)
        q, k, v = rotate(q, rope).transpose(0, 1), rotate(k, rope).transpose(0, 1), v.transpose(0, 1)
        if state.frames:
            k, v = torch.cat((state.keys[layer], k), 1), torch.cat((state.values[layer], v), 1)
        state.keys[layer], state.values[layer] = k, v
        visible = torch.ones(n, state.frames + n, dtype=torch.bool, device=x.device).tril(state.frames)
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=visible)[0]
        x = x + F.linear(y.transpose(0, 1).flatten(1), self.attn_out) * self.attn_scale
        y = F.layer_norm(x, (c.hidden,), self.ffn_norm, self.ffn_norm_bias, c.norm_eps)
        return x + F.linear(F.gelu(F.linear(y, self.ffn_up)), self.ffn_down) * self.ffn_scale


class CodecEncoder(nn.Module):
    """Holds weights only; `encode` owns the state of a clip."""

    BLOCK_FRAMES = 25  # two seconds at a time

    def __init__(self, config: CodecEncoderConfig):
        super().__init__()
        c = self.config = config
        self.entry = StridedConv(1, c.filters, c.kernel)
        self.stages = nn.ModuleList(Stage(c, c.filters << i, stride) for i, stride in enumerate(c.strides))
        self.exit = StridedConv(c.filters << len(c.strides), c.hidden, c.last_kernel)
        self.blocks = nn.ModuleList(EncoderBlock(c) for _ in range(c.layers))
        self.downsample = StridedConv(c.hidden, c.hidden, 4, 2, bias=False, repeat_edge=True)
        self.semantic_proj = weight(c.codebook_width, c.hidden)
        self.semantic_codebook = weight(c.codes, c.codebook_width)
        self.acoustic_proj = weight(c.codebook_width, c.hidden)
        self.acoustic_codebooks = weight(c.books - 1, c.codes, c.codebook_width)
        self._rope: Rope | None = None
        for slot, conv in enumerate(m for m in self.modules() if isinstance(m, StridedConv)):
            conv.slot = slot

    def encode(self, samples: Tensor) -> Tensor:
        """Mono 24 kHz float32 [n], n >= 1 -> codes int64 [ceil(n / 1920), books]."""
        state = StreamState()
        block = self.BLOCK_FRAMES * self.config.samples_per_frame
        return torch.cat([self.quantize(self.embed(part, state)) for part in samples.split(block)])

    def embed(self, samples: Tensor, state: StreamState) -> Tensor:
        """The next block of a clip, all but the last a whole number of frames: [n] -> embeddings [frames, hidden]."""
        x = self.entry(samples[None], state)
        for stage in self.stages:
            x = stage(x, state)
        x = self.exit(F.elu(x), state).T
        if self._rope is None:
            self._rope = Rope(self.config.head_dim, self.config.rope_theta, x.device)
        rope = self._rope.at(state.frames, len(x))
        for layer, transformer in enumerate(self.blocks):
            x = transformer(x, rope, state, layer)
        state.frames += len(x)
        return self.downsample(x.T, state).T

    def quantize(self, x: Tensor) -> Tensor:
        """Embeddings [T, hidden] -> codes [T, books]: one book on its own, the others each on what is left over."""
        codes = [_nearest(F.linear(x, self.semantic_proj), self.semantic_codebook)]
        rest = F.linear(x, self.acoustic_proj)
        for book in self.acoustic_codebooks:
            codes.append(_nearest(rest, book))
            rest = rest - book[codes[-1]]
        return torch.stack(codes, 1)


def _nearest(x: Tensor, codebook: Tensor) -> Tensor:
    """Index of the nearest row by Euclidean distance, the first of equals."""
    return torch.cdist(x[None], codebook[None])[0].argmin(-1)
