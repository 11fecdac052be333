"""code2wav: codes to 24 kHz sound, exact at any chunk size.

The network is causal, so what a later frame needs of earlier ones is small: the last 71 keys and values of each
attention layer, the left context of every convolution and the unfinished tail of every transposed one. Carrying that
state makes pushing 1, 2, 7 or 300 frames at a time the same computation as one pass over the utterance. Everything
runs in float32: bfloat16 overflows in the Snake activations and the result is silence.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.qwen3tts.layers import Rope, StreamState, dense, rms_norm, rotate, weight

# Columns up to which a convolution is a product of its gathered input: faster then, as `dense` does not repack weights.
FEW = 16
# Frames whose sound the CPU makes at a time from where that takes most memory; smaller pieces stay in its caches, too.
STRETCH, LAST_BLOCKS = 2, 2


@dataclass(frozen=True)
class Code2WavConfig:
    """Sizes come from tensor shapes; what no shape tells has llama.cpp's constants as defaults."""

    books: int
    codes: int
    codebook_width: int
    width: int              # of the summed, projected codebook vectors
    latent: int
    hidden: int
    intermediate: int
    decoder: int
    layers: int = 8
    heads: int = 16
    head_dim: int = 64
    window: int = 72
    rms_eps: float = 1e-5
    rope_theta: float = 1e4
    upsample_ratios: tuple[int, ...] = (2, 2)
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)
    dilations: tuple[int, ...] = (1, 3, 9)
    sample_rate: int = 24000

    @property
    def samples_per_frame(self) -> int:
        return math.prod(self.upsample_ratios + self.upsample_rates)


class CausalConv(nn.Module):
    """Conv1d over [C, T] that sees (kernel-1)*dilation columns of the past, zeros before the start."""

    slot: int  # its place in StreamState.tails

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, groups: int = 1):
        super().__init__()
        self.weight = weight(outputs, inputs // groups, kernel)
        self.bias = weight(outputs)
        self.inputs, self.past, self.dilation, self.groups = inputs, (kernel - 1) * dilation, dilation, groups

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        if self.past:
            tail = state.tails.get(self.slot)
            if tail is None:
                tail = x.new_zeros(self.inputs, self.past)
            x = torch.cat((tail, x), -1)
            state.tails[self.slot] = x[:, -self.past:].clone()  # a view would keep the whole chunk alive
        stored = not isinstance(self.weight, Tensor)  # in the file, as rows of all inputs and taps
        if stored or (x.shape[1] - self.past <= FEW and self.groups == 1):
            columns = x.unfold(1, self.past + 1, 1)[..., ::self.dilation]  # [C, T, kernel]
            rows = self.weight if stored else self.weight.flatten(1)
            return dense(columns.transpose(0, 1).flatten(1), rows, self.bias).T
        return F.conv1d(x[None], self.weight, self.bias, dilation=self.dilation, groups=self.groups)[0]


class CausalUpsample(nn.Module):
    """ConvTranspose1d, T -> T*stride columns, of a kernel of one or two strides.

    Computed as one matrix product, as torch's own transposed convolution is up to six times slower on few columns. What
    the last column gives to the next `stride` ones waits in the state.
    """

    slot: int  # its place in StreamState.tails

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int):
        super().__init__()
        assert kernel in (stride, 2 * stride)
        self.weight = weight(outputs, kernel, inputs)
        self.weight.file_axes = (2, 0, 1)
        self.bias = weight(outputs)
        self.stride = stride

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        outputs, kernel, inputs = self.weight.shape
        taps = dense(x.T, self.weight.view(-1, inputs)).T.view(outputs, kernel, -1)
        y = taps[:, :self.stride] + self.bias[:, None, None]
        if kernel > self.stride:
            late = taps[:, self.stride:]
            y[..., 1:] += late[..., :-1]
            tail = state.tails.get(self.slot)
            if tail is not None:
                y[..., 0] += tail
            state.tails[self.slot] = late[..., -1].clone()
        return y.transpose(1, 2).reshape(outputs, -1)


class Snake(nn.Module):
    """x + beta * sin^2(alpha * x) per channel; files store alpha = exp(a) and beta = 1/(exp(b) + 1e-9)."""

    def __init__(self, channels: int):
        super().__init__()
        self.alpha = weight(channels)
        self.beta = weight(channels)

    def forward(self, x: Tensor) -> Tensor:
        s = (x * self.alpha[:, None]).sin_()
        return torch.addcmul(x, s.square_(), self.beta[:, None])


class TransformerBlock(nn.Module):
    """Pre-norm block with layer scales; attention over the last `window` frames, itself included."""

    def __init__(self, c: Code2WavConfig):
        super().__init__()
        self.config = c
        inner = c.heads * c.head_dim
        self.attn_norm = weight(c.hidden)
        self.qkv = weight(3 * inner, c.hidden)
        self.attn_out = weight(c.hidden, inner)
        self.attn_scale = weight(c.hidden)
        self.ffn_norm = weight(c.hidden)
        self.gate_up = weight(2 * c.intermediate, c.hidden)
        self.ffn_down = weight(c.hidden, c.intermediate)
        self.ffn_scale = weight(c.hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, state: StreamState, layer: int) -> Tensor:
        """x [T, hidden]; mask [T, past + T] says which keys each frame sees."""
        c = self.config
        q, k, v = dense(rms_norm(x, self.attn_norm, c.rms_eps), self.qkv).view(len(x), 3, c.heads, -1).unbind(1)
        q, k, v = rotate(q, rope).transpose(0, 1), rotate(k, rope).transpose(0, 1), v.transpose(0, 1)
        if state.frames:
            k, v = torch.cat((state.keys[layer], k), 1), torch.cat((state.values[layer], v), 1)
        keep = c.window - 1
        state.keys[layer], state.values[layer] = k[:, -keep:].clone(), v[:, -keep:].clone()
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        x = x + dense(y.transpose(0, 1).flatten(1), self.attn_out) * self.attn_scale
        gate, up = dense(rms_norm(x, self.ffn_norm, c.rms_eps), self.gate_up).chunk(2, -1)
        return x + dense(F.silu(gate) * up, self.ffn_down) * self.ffn_scale


class ConvNeXt(nn.Module):
    """Depthwise convolution and a pointwise MLP with residual (Liu et al. 2022), exact (erf) GELU."""

    def __init__(self, channels: int):
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = weight(channels)
        self.norm_bias = weight(channels)
        self.pw1 = weight(4 * channels, channels)
        self.pw1_bias = weight(4 * channels)
        self.pw2 = weight(channels, 4 * channels)
        self.pw2_bias = weight(channels)
        self.gamma = weight(channels)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        y = F.layer_norm(self.dwconv(x, state).T, (len(x),), self.norm, self.norm_bias, 1e-6)
        y = dense(F.gelu(dense(y, self.pw1, self.pw1_bias)), self.pw2, self.pw2_bias)
        return x + (y * self.gamma).T


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int):
        super().__init__()
        self.act1 = Snake(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.act2 = Snake(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x), state)), state)


class DecoderBlock(nn.Module):
    """Snake, upsampling by `rate` with half the channels, residual units of growing dilation."""

    def __init__(self, channels: int, rate: int, dilations: tuple[int, ...]):
        super().__init__()
        self.snake = Snake(channels)
        self.conv = CausalUpsample(channels, channels // 2, 2 * rate, rate)
        self.res = nn.ModuleList(ResidualUnit(channels // 2, d) for d in dilations)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        x = self.conv(self.snake(x), state)
        for unit in self.res:
            x = unit(x, state)
        return x


class Code2Wav(nn.Module):
    """The speech tokenizer's decoder. Holds weights only; the stream lives in a `StreamState`."""

    def __init__(self, config: Code2WavConfig):
        super().__init__()
        c = self.config = config
        self.first_codebook = weight(c.codes, c.codebook_width)
        self.first_proj = weight(c.width, c.codebook_width)
        self.rest_codebooks = weight(c.books - 1, c.codes, c.codebook_width)
        self.rest_proj = weight(c.width, c.codebook_width)
        self.pre_conv = CausalConv(c.width, c.latent, 3)
        self.in_proj = weight(c.hidden, c.latent)
        self.in_proj_bias = weight(c.hidden)
        self.blocks = nn.ModuleList(TransformerBlock(c) for _ in range(c.layers))
        self.norm = weight(c.hidden)
        self.out_proj = weight(c.latent, c.hidden)
        self.out_proj_bias = weight(c.latent)
        self.upsample = nn.ModuleList(
            nn.ModuleList((CausalUpsample(c.latent, c.latent, ratio, ratio), ConvNeXt(c.latent)))
            for ratio in c.upsample_ratios)
        self.entry = CausalConv(c.latent, c.decoder, 7)
        channels = [c.decoder >> i for i in range(len(c.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            DecoderBlock(n, rate, c.dilations) for n, rate in zip(channels, c.upsample_rates, strict=False))
        self.post_snake = Snake(channels[-1])
        self.post_conv = CausalConv(channels[-1], 1, 7)
        self._rope: Rope | None = None
        for slot, conv in enumerate(m for m in self.modules() if isinstance(m, (CausalConv, CausalUpsample))):
            conv.slot = slot

    def push(self, codes: Tensor, state: StreamState) -> Tensor:
        """The next frames of a stream: codes int64 [T, books] -> samples float32 [T * samples_per_frame] in [-1, 1]."""
        x = self.pre_conv(self.dequantize(codes).T, state)
        x = self._transform(x.T, state).T
        for up, convnext in self.upsample:
            x = convnext(up(x, state), state)
        x = self.entry(x, state)
        for block in self.decoder[:-LAST_BLOCKS]:
            x = block(x, state)
        state.frames += len(codes)
        frames = STRETCH if x.device.type == "cpu" else len(codes)
        return torch.cat([self._sound(part, state) for part in x.split(frames * x.shape[1] // len(codes), -1)])

    def _sound(self, x: Tensor, state: StreamState) -> Tensor:
        """The last blocks: [C, T] -> samples."""
        for block in self.decoder[-LAST_BLOCKS:]:
            x = block(x, state)
        return self.post_conv(self.post_snake(x), state)[0].clamp(-1, 1)

    def dequantize(self, codes: Tensor) -> Tensor:
        """codes [T, books] -> [T, width]: book 0 and the sum of the others, each through its own projection."""
        books = torch.arange(self.config.books - 1, device=codes.device)
        rest = self.rest_codebooks[books, codes[:, 1:]].sum(1)
        return dense(self.first_codebook[codes[:, 0]], self.first_proj) + dense(rest, self.rest_proj)

    def _transform(self, x: Tensor, state: StreamState) -> Tensor:
        """The sliding-window transformer: [T, latent] -> [T, latent]."""
        c = self.config
        if self._rope is None:
            self._rope = Rope(c.head_dim, c.rope_theta, x.device)
        rope = self._rope.at(state.frames, len(x))
        past = min(state.frames, c.window - 1)
        mask = torch.ones(len(x), past + len(x), dtype=torch.bool, device=x.device)
        mask = mask.tril(past).triu(past - c.window + 1)
        x = dense(x, self.in_proj, self.in_proj_bias)
        for layer, block in enumerate(self.blocks):
            x = block(x, rope, mask, state, layer)
        return dense(rms_norm(x, self.norm, c.rms_eps), self.out_proj, self.out_proj_bias)
