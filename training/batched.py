"""The shipped modules over batches, for training: the same weights and formulas with a batch in front.

At run time a module sees one utterance in pieces and carries a state; here it sees whole stretches of many, from zero
state on. tests/test_training_batched.py holds both against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.qwen3tts.code2wav import CausalConv, CausalUpsample, Code2Wav, ConvNeXt, Snake
from tts_cli.qwen3tts.layers import Decoder, Rope


def conv(m: CausalConv, x: Tensor) -> Tensor:
    """[B, C, T] -> [B, C', T]."""
    return F.conv1d(F.pad(x, (m.past, 0)), m.weight, m.bias, dilation=m.dilation, groups=m.groups)


def upsample(m: CausalUpsample, x: Tensor) -> Tensor:
    """[B, C, T] -> [B, C', T * stride]; what the last column would give beyond is cut."""
    y = F.conv_transpose1d(x, m.weight.permute(2, 0, 1), m.bias, stride=m.stride)
    return y[..., :x.shape[-1] * m.stride]


def snake(m: Snake, x: Tensor) -> Tensor:
    """[B, C, T] -> the same; x + beta sin²(alpha x) (Ziyin et al. 2020)."""
    alpha, beta = m.alpha[:, None].to(x.dtype), m.beta[:, None].to(x.dtype)
    return x + (x * alpha).sin().square() * beta


def convnext(m: ConvNeXt, x: Tensor) -> Tensor:
    """[B, C, T] -> the same; a depthwise convolution, then two layers at each place (Liu et al. 2022)."""
    y = F.layer_norm(conv(m.dwconv, x).mT, (x.shape[1],), m.norm, m.norm_bias, 1e-6)
    y = F.linear(F.gelu(F.linear(y, m.pw1, m.pw1_bias)), m.pw2, m.pw2_bias)
    return x + (y * m.gamma).mT


def features(m: Code2Wav, latent: Tensor) -> Tensor:
    """The half at frame rate and the upsampling: projected latent [B, T, width] -> [B, latent, 4 T] at 50 Hz."""
    c = m.config
    x = conv(m.pre_conv, latent.mT).mT
    steps = torch.arange(x.shape[1], device=x.device)
    age = steps[:, None] - steps
    unseen = (age < 0) | (age >= c.window)
    rope = Rope(c.head_dim, c.rope_theta, x.device).at(0, x.shape[1])
    x = F.linear(x, m.in_proj, m.in_proj_bias)
    for b in m.blocks:
        qkv = F.linear(_rms(x, b.attn_norm, c.rms_eps), b.qkv).unflatten(-1, (3, c.heads, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        # Written out, as in `decoder`: on the CPU backwards six times as fast as torch's fused attention.
        scores = (_rotate(q, rope) * c.head_dim ** -0.5) @ _rotate(k, rope).mT
        y = scores.masked_fill(unseen, -torch.inf).softmax(-1).to(v.dtype) @ v
        x = x + F.linear(y.transpose(1, 2).flatten(2), b.attn_out) * b.attn_scale
        gate, up = F.linear(_rms(x, b.ffn_norm, c.rms_eps), b.gate_up).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, b.ffn_down) * b.ffn_scale
    x = F.linear(_rms(x, m.norm, c.rms_eps), m.out_proj, m.out_proj_bias).mT
    for up, block in m.upsample:
        x = convnext(block, upsample(up, x))
    return x


def waveform(m: Code2Wav, x: Tensor) -> Tensor:
    """The convolutional half: [B, latent, n] at 50 Hz -> samples [B, 480 n], not clamped."""
    x = conv(m.entry, x)
    for block in m.decoder:
        x = upsample(block.conv, snake(block.snake, x))
        for unit in block.res:
            x = x + conv(unit.conv2, snake(unit.act2, conv(unit.conv1, snake(unit.act1, x))))
    return conv(m.post_conv, snake(m.post_snake, x))[:, 0]


@dataclass
class Watched:
    """What was seen of some layers: the rows [B, n, H] that enter the first of them, and of each the attention
    [B, n, n] of its first head."""

    rows: Tensor | None = None
    attention: list[Tensor] = field(default_factory=list)


def decoder(m: Decoder, x: Tensor, dropout: float = 0.0, watch: Sequence[int] = ()) -> tuple[Tensor, Watched]:
    """Rows [B, n, H] -> hidden [B, n, H] after the final norm, causal from position 0 on.

    dropout  of what each half of a block adds to the stream
    watch    numbers of layers; what is seen of them comes second
    """
    c, watched = m.config, Watched()
    rope = Rope(c.head_dim, c.rope_theta, x.device).at(0, x.shape[1])
    drop = nn.Dropout(dropout)
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    for layer, b in enumerate(m.blocks):
        if layer in watch and watched.rows is None:
            watched.rows = x
        qkv = F.linear(_rms(x, b.attn_norm, c.rms_eps), b.qkv).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), 1)
        q = _rotate(_rms(q.float(), None, c.rms_eps) * b.q_norm, rope)
        k = _rotate(_rms(k.float(), None, c.rms_eps) * b.k_norm, rope)
        # Written out: on the CPU it is faster backwards than torch's fused attention, and a head can be watched.
        k, v = (t.repeat_interleave(c.heads // c.kv_heads, 1) for t in (k, v))
        scores = (q.to(v.dtype) * c.head_dim ** -0.5) @ k.to(v.dtype).mT
        attention = scores.masked_fill(future, -torch.inf).softmax(-1)
        if layer in watch:
            watched.attention.append(attention[:, 0])
        y = attention.to(v.dtype) @ v
        x = x + drop(F.linear(y.transpose(1, 2).flatten(2), b.attn_out))
        gate, up = F.linear(_rms(x, b.ffn_norm, c.rms_eps), b.gate_up).chunk(2, -1)
        x = x + drop(F.linear(F.silu(gate) * up, b.ffn_down))
    return _rms(x, m.norm, c.rms_eps), watched


def _rms(x: Tensor, w: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), None if w is None else w.to(x.dtype), eps)


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """[B, heads, n, head_dim] by the angles of `Rope.at`."""
    cos, sin = (t.transpose(0, 1).to(x.dtype) for t in rope)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
