"""A Kokoro of a few thousand random weights, and the vocoder written out plainly to compare with."""

import torch
import torch.nn.functional as F

from tts_cli.kokoro.config import IstftNetConfig, KokoroConfig, PLBertConfig
from tts_cli.kokoro.model import Kokoro

TINY = KokoroConfig(
    tokens=20, hidden=16, style=6, layers=2, max_duration=9, decoder=20, asr_residual=4,
    bert=PLBertConfig(hidden=24, heads=3, intermediate=32, positions=40, passes=2, embedding=8),
    istftnet=IstftNetConfig(channels=16, block_dilations=((1, 2), (1, 3), (1,))),
    vocab={symbol: index for index, symbol in enumerate("abcdefgh", 1)})


def tiny_kokoro(seed: int = 0) -> Kokoro:
    """Of `TINY`, with weights that give finite sound of about the real model's level and F0 on both sides of 10 Hz."""
    generator = torch.Generator().manual_seed(seed)
    model = Kokoro(TINY).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / (2 * fan_in) ** 0.5)
        if "alpha" in name:
            parameter.abs_().add_(0.2)
        elif "norm" in name and name.endswith("weight") and parameter.dim() == 1:
            parameter.fill_(1)
    model.prosody.duration.weight.mul_(8)  # or every token lasts as long
    model.prosody.f0.out.weight.mul_(60)
    model.prosody.f0.out.bias.fill_(60)
    return model


def plain_adain(norm, x, style):
    gamma, beta = norm.fc(style).chunk(2)
    return F.instance_norm(x, eps=1e-5) * (1 + gamma[:, None]) + beta[:, None]


def plain_block(block, x, style):
    """A `SnakeBlock` over [1, C, T]."""
    for unit in block:
        y = x
        for norm, alpha, conv in ((unit.norm1, unit.alpha1, unit.conv1), (unit.norm2, unit.alpha2, unit.conv2)):
            y, alpha = plain_adain(norm, y, style), alpha[:, None]
            y = y + torch.sin(alpha * y) ** 2 / alpha
            pad = (conv.weight.shape[-1] - 1) * conv.dilation // 2
            y = F.conv1d(y, conv.weight, conv.bias, padding=pad, dilation=conv.dilation)
        x = x + y
    return x


def plain_spectrum(generator, x, style, har):
    """`Generator.spectrum` of Kokoro's rates 10 and 6, step by step over [1, C, T]."""
    x, har = x.T[None], har.T[None]
    first, last = generator.stages
    x = F.conv_transpose1d(F.leaky_relu(x, 0.1), first.up.weight, first.up.bias, stride=10, padding=5)
    source = F.conv1d(har, first.source_conv.weight, first.source_conv.bias, stride=6, padding=3)
    x = x + plain_block(first.source_block, source, style)
    x = sum(plain_block(block, x, style) for block in first.blocks) / 3
    x = F.conv_transpose1d(F.leaky_relu(x, 0.1), last.up.weight, last.up.bias, stride=6, padding=3)
    x = F.pad(x, (1, 0), mode="reflect")
    source = F.conv1d(har, last.source_conv.weight, last.source_conv.bias)
    x = x + plain_block(last.source_block, source, style)
    x = sum(plain_block(block, x, style) for block in last.blocks) / 3
    x = F.conv1d(F.leaky_relu(x, 0.01), generator.post.weight, generator.post.bias, padding=3)
    return x[0].T
