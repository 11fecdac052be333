"""The layers the parts of Kokoro share, all over [T, C]: time first, one utterance, no batch.

With the channels of one moment side by side in memory, a convolution is a 2-D one of height 1 in the channels-last
format. On CPUs that is 1.4 (float32) to 5 times (bfloat16) faster than `conv1d`, which reorders its input and output
at every call.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CACHED = 2**19  # values: 2 MiB. Half of it is no faster on one thread, and every block is a meeting of all threads


def kernel_weight(first: int, second: int, kernel: int) -> nn.Parameter:
    """An unset [first, second, kernel] whose second axis lies side by side in memory."""
    return nn.Parameter(torch.empty(first, kernel, second).transpose(1, 2), requires_grad=False)


def kernel_layout(weight: Tensor) -> Tensor:
    """The same numbers in the memory order of `kernel_weight`."""
    return weight.transpose(1, 2).contiguous().transpose(1, 2)


def _image(x: Tensor) -> Tensor:
    """[T, C] -> [1, C, 1, T], a view in the channels-last format."""
    return x.T[None, :, None]


def _sequence(image: Tensor) -> Tensor:
    return image[0, :, 0].T


class _Unset:
    """torch's layers without their random start: the loader fills them, and on the meta device it costs two seconds."""

    def reset_parameters(self) -> None:
        pass


class Linear(_Unset, nn.Linear):
    pass


class Embedding(_Unset, nn.Embedding):
    pass


class LayerNorm(_Unset, nn.LayerNorm):
    pass


class BiLSTM(_Unset, nn.LSTM):
    """[T, inputs] -> [T, outputs], half of them from each direction."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs // 2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class Conv(nn.Module):
    """Conv1d, [T, inputs] -> [T // stride, outputs]; computes and returns in the weight's dtype."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, *, stride: int = 1, dilation: int = 1,
                 padding: int | None = None, bias: bool = True):
        super().__init__()
        self.weight = kernel_weight(outputs, inputs, kernel)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False) if bias else None
        self.stride, self.dilation = stride, dilation
        self.padding = (kernel - 1) * dilation // 2 if padding is None else padding

    def forward(self, x: Tensor) -> Tensor:
        return _sequence(F.conv2d(_image(x.to(self.weight.dtype)), self.weight[:, :, None], self.bias,
                                  (1, self.stride), (0, self.padding), (1, self.dilation)))


class Upsample(nn.Module):
    """ConvTranspose1d, [T, inputs] -> [T * rate, outputs]; computes and returns in the weight's dtype."""

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int):
        super().__init__()
        self.weight = kernel_weight(inputs, outputs, kernel)
        self.bias = nn.Parameter(torch.empty(outputs), requires_grad=False)
        self.rate, self.padding = rate, (kernel - rate) // 2

    def forward(self, x: Tensor) -> Tensor:
        return _sequence(F.conv_transpose2d(_image(x.to(self.weight.dtype)), self.weight[:, :, None], self.bias,
                                            (1, self.rate), (0, self.padding)))


class Doubling(nn.Module):
    """Depthwise ConvTranspose1d, kernel 3, stride 2, padding 1, output padding 1: [T, C] -> [2T, C]."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, 3), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(channels), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        before, centre, after = self.weight[:, 0].unbind(-1)
        following = F.pad(x[1:], (0, 0, 0, 1))
        odd = torch.addcmul(x * after + self.bias, following, before)
        return torch.stack((x * centre + self.bias, odd), 1).flatten(0, 1)


class AdaIN(nn.Module):
    """Instance norm over time, scaled and shifted by a linear map of the style (Huang and Belongie 2017)."""

    def __init__(self, channels: int, style: int):
        super().__init__()
        self.fc = Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.affine(x, style)
        return torch.addcmul(shift, x, scale)

    def affine(self, x: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """What x [T, C] is to be multiplied by, and what to add: float32 [C] each."""
        gamma, beta = self.fc(style).chunk(2)
        mean, variance = moments(x)
        scale = (1 + gamma) * (variance + 1e-5).rsqrt()
        return scale, beta - mean * scale


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over the time of x [T, C], float32 [C] each.

    Summed in blocks around a value near the mean: one pass, and as exact as two. `var_mean` along the first axis is
    ten times slower, and `batch_norm` sums a long utterance moment by moment, which costs three digits.
    """
    blocks = cache_blocks(x)
    near = blocks[0].float().mean(0)
    total, squares = torch.zeros_like(near), torch.zeros_like(near)
    for block in blocks:
        offset = block - near
        total += offset.sum(0)
        squares += offset.square_().sum(0)
    offset = total / len(x)
    return near + offset, squares / len(x) - offset.square()


def cache_blocks(x: Tensor) -> tuple[Tensor, ...]:
    """x [T, C] in runs of rows that stay in a processor's cache over several passes; whole on other devices."""
    return x.split(max(1, _CACHED // x.shape[1])) if x.device.type == "cpu" else (x,)


class AdaLayerNorm(nn.Module):
    """Layer norm over the channels, scaled and shifted by a linear map of the style."""

    def __init__(self, channels: int, style: int):
        super().__init__()
        self.fc = Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gamma, beta = self.fc(style).chunk(2)
        return F.layer_norm(x, (x.shape[-1],), 1 + gamma, beta, 1e-5)


class AdaINBlock(nn.Module):
    """StyleTTS 2's residual block: twice AdaIN, LeakyReLU 0.2 and a convolution; may double the length."""

    def __init__(self, inputs: int, outputs: int, style: int, double: bool = False):
        super().__init__()
        self.norm1 = AdaIN(inputs, style)
        self.doubling = Doubling(inputs) if double else None
        self.conv1 = Conv(inputs, outputs, 3)
        self.norm2 = AdaIN(outputs, style)
        self.conv2 = Conv(outputs, outputs, 3)
        self.shortcut = Conv(inputs, outputs, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """[T, inputs] -> [T or 2T, outputs]."""
        y = F.leaky_relu_(self.norm1(x, style), 0.2)
        if self.doubling is not None:
            y = self.doubling(y)
        y = self.conv2(F.leaky_relu_(self.norm2(self.conv1(y), style), 0.2))
        if self.shortcut is not None:
            x = self.shortcut(x)
        if self.doubling is not None:
            x = x.repeat_interleave(2, 0)
        return y.add_(x).mul_(math.sqrt(0.5))
