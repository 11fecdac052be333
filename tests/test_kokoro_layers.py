"""The layers over [time, channels] compute what torch's over [batch, channels, time] do."""

import pytest
import torch
import torch.nn.functional as F
from tiny_kokoro import plain_adain, tiny_kokoro

from tts_cli.kokoro.istftnet import snake
from tts_cli.kokoro.layers import AdaIN, AdaINBlock, Conv, Doubling, Upsample, kernel_layout, moments


def filled(module, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.requires_grad_(False).copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return module


@pytest.fixture
def x():
    return torch.randn(37, 10, generator=torch.Generator().manual_seed(1))


def close(ours, expected, tolerance=2e-6):
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(1, 1, 1), (3, 1, 5), (7, 1, 1), (3, 2, 1)])
def test_conv(x, kernel, stride, dilation):
    conv = filled(Conv(10, 6, kernel, stride=stride, dilation=dilation))
    expected = F.conv1d(x.T, conv.weight, conv.bias, stride, (kernel - 1) * dilation // 2, dilation)
    close(conv(x), expected.T)


@pytest.mark.parametrize(("kernel", "rate"), [(20, 10), (12, 6), (4, 4)])
def test_upsample_gives_rate_moments_for_each(x, kernel, rate):
    up = filled(Upsample(10, 5, kernel, rate))
    y = up(x)
    assert len(y) == rate * len(x)
    close(y, F.conv_transpose1d(x.T, up.weight, up.bias, rate, (kernel - rate) // 2).T)


def test_doubling_is_the_depthwise_transposed_convolution(x):
    double = filled(Doubling(10))
    close(double(x), F.conv_transpose1d(x.T, double.weight, double.bias, 2, 1, output_padding=1, groups=10).T)


def test_kernels_lie_channels_last_and_layout_does_not_change_the_numbers():
    weight = torch.randn(4, 3, 5)
    assert torch.equal(kernel_layout(weight), weight)
    assert kernel_layout(weight).stride() == Conv(3, 4, 5).weight.stride() == (15, 1, 3)
    assert Upsample(4, 3, 5, 1).weight.stride() == (15, 1, 3)


def test_adain(x):
    norm, style = filled(AdaIN(10, 6)), torch.randn(6, generator=torch.Generator().manual_seed(2))
    close(norm(3 * x + 1, style), plain_adain(norm, (3 * x + 1).T[None], style)[0].T)


@pytest.mark.parametrize("offset", [0, 1000])
def test_moments_of_a_long_signal_far_from_zero(offset):
    x = torch.randn(30000, 64, generator=torch.Generator().manual_seed(3)) + offset
    mean, variance = moments(x)
    exact = x.double()
    assert (mean - exact.mean(0)).abs().max() <= 1e-7 * max(offset, 1)
    assert (variance / exact.var(0, correction=0) - 1).abs().max() <= 2e-6


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("outputs", [10, 7])
def test_adain_block(x, outputs, double):
    block = filled(AdaINBlock(10, outputs, 6, double))
    style = torch.randn(6, generator=torch.Generator().manual_seed(4))
    before, x1 = x.clone(), x.T[None]
    y = F.leaky_relu(plain_adain(block.norm1, x1, style), 0.2)
    if double:
        y = F.conv_transpose1d(y, block.doubling.weight, block.doubling.bias, 2, 1, output_padding=1, groups=10)
        x1 = F.interpolate(x1, scale_factor=2, mode="nearest")
    y = F.conv1d(y, block.conv1.weight, block.conv1.bias, padding=1)
    y = F.leaky_relu(plain_adain(block.norm2, y, style), 0.2)
    y = F.conv1d(y, block.conv2.weight, block.conv2.bias, padding=1)
    if outputs != 10:
        x1 = F.conv1d(x1, block.shortcut.weight)
    close(block(x, style), ((y + x1) / 2**0.5)[0].T)
    assert torch.equal(x, before)  # nothing is computed in place of the input


@pytest.mark.parametrize("smallest", [1.0, 9.5e-5])
def test_snake_keeps_its_digits_down_to_the_smallest_published_alpha(smallest):
    x = torch.randn(9000, 8, generator=torch.Generator().manual_seed(5))
    scale, shift, alpha = torch.linspace(0.5, 2, 8), torch.linspace(-1, 1, 8), torch.linspace(smallest, 2, 8)
    y = x.double() * scale + shift
    close(snake(x, (scale, shift), alpha).double(), y + (alpha * y).sin() ** 2 / alpha)


def test_snake_of_bfloat16_is_rounded_once():
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(6)).bfloat16()
    affine, alpha = (torch.full((8,), 1.5), torch.full((8,), 0.25)), torch.full((8,), 0.7)
    assert torch.equal(snake(x, affine, alpha), snake(x.float(), affine, alpha).bfloat16())


def test_bert_sees_positions_and_every_other_token():
    bert = tiny_kokoro().bert
    a, b = bert(torch.tensor([0, 5, 6, 7, 0])), bert(torch.tensor([0, 6, 5, 7, 0]))
    assert a.shape == (5, 24)
    assert ((a - b).abs().amax(1) > 1e-4).all()
