"""Quantised blocks to numbers with torch, where the tensor is to be: on a GPU in milliseconds.

The layouts are those of ggml's `block_*` structs; results are those of the gguf package, bit for bit, which reads the
other types.
"""

from collections.abc import Callable

import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

_LOW_AND_HIGH = 0, 4  # shifts to the two numbers in a byte


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at that byte of each block, float32 [n, 1]."""
    return blocks[:, at:at + 2].contiguous().view(torch.float16).float()


def _parts(values: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """The fields of each byte: [..., bytes] -> [..., fields, bytes]."""
    return torch.stack([(values >> shift) & mask for shift in shifts], -2)


def _nibbles(values: Tensor) -> Tensor:
    """[n, 16] -> [n, 32]: all low ones, then all high ones."""
    return _parts(values, _LOW_AND_HIGH, 15).flatten(1)


def _fifth_bits(values: Tensor) -> Tensor:
    """Four bytes [n, 4] that hold a bit for each of 32 numbers -> [n, 32], 0 or 16."""
    return _parts(values, tuple(range(8)), 1).transpose(1, 2).flatten(1) << 4


def _q4_0(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 2:]).float() - 8)


def _q4_1(b: Tensor) -> Tensor:
    return _half(b, 0) * _nibbles(b[:, 4:]).float() + _half(b, 2)


def _q5_0(b: Tensor) -> Tensor:
    return _half(b, 0) * ((_nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])).float() - 16)


def _q5_1(b: Tensor) -> Tensor:
    return _half(b, 0) * (_nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])).float() + _half(b, 2)


def _q8_0(b: Tensor) -> Tensor:
    return _half(b, 0) * b[:, 2:].contiguous().view(torch.int8).float()


def _scales_and_minima(b: Tensor) -> tuple[Tensor, Tensor]:
    """Of the 8 groups of a K block, each float32 [n, 8, 1]: d and dmin times six-bit numbers, of which the last four
    of each kind have their upper two bits in the bytes of the first four."""
    first, second, third = b[:, 4:16].unflatten(1, (3, 4)).unbind(1)
    scales = torch.cat((first & 63, third & 15 | (first >> 6) << 4), 1)
    minima = torch.cat((second & 63, third >> 4 | (second >> 6) << 4), 1)
    return (_half(b, 0) * scales.float())[..., None], (_half(b, 2) * minima.float())[..., None]


def _q4_k(b: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(b)
    numbers = _parts(b[:, 16:].unflatten(1, (4, 32)), _LOW_AND_HIGH, 15).flatten(1, 2)  # [n, 8, 32]
    return scales * numbers.float() - minima


def _q5_k(b: Tensor) -> Tensor:
    scales, minima = _scales_and_minima(b)
    numbers = _parts(b[:, 48:].unflatten(1, (4, 32)), _LOW_AND_HIGH, 15).flatten(1, 2)
    return scales * (numbers | _parts(b[:, 16:48], tuple(range(8)), 1) << 4).float() - minima


def _q6_k(b: Tensor) -> Tensor:
    scales = _half(b, 208) * b[:, 192:208].contiguous().view(torch.int8).float()
    low = _parts(b[:, :128].unflatten(1, (2, 64)), _LOW_AND_HIGH, 15).flatten(2)     # [n, 2, 128]
    high = _parts(b[:, 128:192].unflatten(1, (2, 32)), (0, 2, 4, 6), 3).flatten(2)
    numbers = (low | high << 4).float() - 32
    return scales[..., None] * numbers.view(len(b), 16, 16)


_DEQUANTISERS: dict[Kind, Callable[[Tensor], Tensor]] = {
    Kind.Q4_0: _q4_0, Kind.Q4_1: _q4_1, Kind.Q5_0: _q5_0, Kind.Q5_1: _q5_1, Kind.Q8_0: _q8_0,
    Kind.Q4_K: _q4_k, Kind.Q5_K: _q5_k, Kind.Q6_K: _q6_k}
KINDS = frozenset(_DEQUANTISERS)


def dequantise(blocks: Tensor, kind: Kind) -> Tensor:
    """uint8 [n, bytes per block] on any device -> float32 [n, numbers per block]; `kind` is one of `KINDS`."""
    return _DEQUANTISERS[kind](blocks).flatten(1)
