"""How each storage type worth a kernel is unpacked, as LLVM vector code.

A row is read in blocks. Most types give a block's weights in their order, two vectors of `LANES` for each 32. For the
types of super-blocks to widen every byte would cost more than the product: there a vector is byte j of sixteen 32-bit
words, masked where it lies, and the inputs come in the order of these bytes instead, each divided by 256**j: exactly,
for numbers from 1e-30 to 1e30. Layouts: ggml-common.h of llama.cpp, gguf.quants.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from llvmlite import ir
from numba.core.cgutils import get_or_insert_function

from tts_cli.compiled import UNIT

LANES = 16

F32, I8, I32, I64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOATS, _INTS, _HALVES, _SHORTS, _BYTES = (
    ir.VectorType(t, LANES) for t in (F32, I32, ir.HalfType(), ir.IntType(16), I8))
_EIGHT, _EIGHT_INTS = ir.VectorType(F32, 8), ir.VectorType(I32, 8)  # scales of a super-block


class Format(NamedTuple):
    """A type's blocks as the kernels read them.

    unpack    (builder, `Row` at a block) yields groups: their vectors of weights, the vectors' common factor or None,
              the factor of the sum of their inputs or None. Every group of a type has the same.
    columns   of a block
    size      of a block in bytes
    order     int [groups, vectors, LANES]: the columns that the lanes of a group's vectors stand for; after these comes
              one vector with the sums of the group's inputs. Empty: the inputs are read as they are
    """
    unpack: Callable
    columns: int
    size: int
    order: np.ndarray

    @property
    def inputs(self) -> int:
        """Numbers that a block is multiplied with."""
        return self.order.size + LANES * len(self.order) or self.columns


class Row:
    """The bytes of one row at a fixed place: emits loads and conversions."""

    def __init__(self, builder: ir.IRBuilder, address):
        self.b, self.pointer = builder, builder.inttoptr(address, I8.as_pointer())

    def at(self, offset) -> "Row":
        row = Row.__new__(Row)
        row.b = self.b
        row.pointer = self.b.gep(self.pointer, [I64(offset) if isinstance(offset, int) else offset])
        return row

    def load(self, kind, align: int = 1):
        return self.b.load(self.b.bitcast(self.pointer, kind.as_pointer()), align=align)

    def half(self, kind=None):
        """A float16 in all lanes. Loaded as an integer: a lone float16 load waits for an unrelated register on x86."""
        kind = kind or FLOATS
        short = _splat(self.b, self.load(ir.IntType(16), 2), kind.count)
        return self.b.fpext(self.b.bitcast(short, ir.VectorType(ir.HalfType(), kind.count)), kind)

    def bytes(self, group: int):
        """`LANES` unsigned bytes as i32."""
        return self.b.zext(self.at(LANES * group).load(_BYTES), _INTS)


def _splat(b, scalar, lanes: int = LANES):
    vector = b.insert_element(ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined), scalar, I32(0))
    return b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def _lane(b, vector, lane: int):
    """One lane of a vector of any length in all."""
    return b.shuffle_vector(vector, vector, ir.Constant(_INTS, [lane] * LANES))


def _ints(*values: int):
    return ir.Constant(_INTS, list(values) if len(values) > 1 else list(values) * LANES)


def fma(b):
    """The function for a * b + c on vectors, fused where the processor can."""
    return get_or_insert_function(b.module, ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32")


# What `Format.unpack` may be.

def _f32(b, block):
    yield [block.at(4 * LANES * g).load(FLOATS, 4) for g in range(2)], None, None


def _f16(b, block):
    yield [b.fpext(block.at(2 * LANES * g).load(_HALVES, 2), FLOATS) for g in range(2)], None, None


def _bf16(b, block):
    yield [b.bitcast(b.shl(b.zext(block.at(2 * LANES * g).load(_SHORTS, 2), _INTS), _ints(16)), FLOATS)
           for g in range(2)], None, None


def _q8_0(b, block):
    yield [b.sitofp(b.sext(block.at(2 + LANES * g).load(_BYTES), _INTS), FLOATS) for g in range(2)], block.half(), None


def _legacy(minimum: bool, fifth_bit: bool) -> Callable:
    """Q4_0, Q4_1, Q5_0, Q5_1: scale (minimum), (32 high bits), 16 bytes with weights l and l + 16 in their nibbles."""
    def unpack(b, block):
        scale, at = block.half(), 4 if minimum else 2
        high = _splat(b, block.at(at).load(I32)) if fifth_bit else None
        nibbles = block.at(at + 4 if fifth_bit else at).bytes(0)
        vectors = []
        for g in range(2):
            ints = b.lshr(nibbles, _ints(4)) if g else b.and_(nibbles, _ints(15))
            if fifth_bit:
                bit = b.and_(b.lshr(high, _ints(*range(LANES * g, LANES * (g + 1)))), _ints(1))
                ints = b.or_(ints, b.shl(bit, _ints(4)))
            if not minimum:
                ints = b.sub(ints, _ints(16 if fifth_bit else 8))
            vectors.append(b.sitofp(ints, FLOATS))
        if minimum:
            offset = block.at(2).half()
            vectors, scale = [b.call(fma(b), [vector, scale, offset]) for vector in vectors], None
        yield vectors, scale, None
    return unpack


# The types of super-blocks of 256 weights.

def _bytes(b, words) -> list:
    """The four bytes, none over 127, of sixteen words: vector j is 256**j times these."""
    return [b.sitofp(b.and_(words, _ints(127 << 8 * j)), FLOATS) for j in range(4)]


def _nibbles(b, words) -> list:
    """Words of the low and words of the high nibbles of all bytes."""
    return [b.and_(words, _ints(0x0F0F0F0F)), b.and_(b.lshr(words, _ints(4)), _ints(0x0F0F0F0F))]


def _twice(b, place: Row, left: tuple[int, int]):
    """Eight words twice; the first eight shifted left by so many bits, the others by so many (to the right if < 0)."""
    eight = place.load(_EIGHT_INTS)
    words = b.shuffle_vector(eight, eight, _ints(*(w % 8 for w in range(LANES))))
    by = _ints(*(abs(left[w // 8]) for w in range(LANES)))
    return b.shl(words, by) if max(left) > 0 else b.lshr(words, by)


def _order(column: Callable[[int, int], int]) -> np.ndarray:
    """`Format.order` where the nibbles g of word w of half a super-block are four weights from `column(g, w)` on."""
    return np.array([[[128 * half + column(g, w) + j for w in range(LANES)] for j in range(4)]
                     for half in range(2) for g in range(2)])


def _scales_and_minima(b, block: Row):
    """The 8 factors and the 8 offsets of the units of Q4_K and Q5_K. After scale and minimum 12 bytes: low six bits of
    the first and the second four; for the later units nibbles of the last four, whose top bits are those of the first
    eight."""
    first, second, third = (b.zext(block.at(at).load(ir.VectorType(I8, 4)), ir.VectorType(I32, 4))
                            for at in (4, 8, 12))
    four = lambda n: ir.Constant(first.type, [n] * 4)  # noqa: E731
    top = lambda v: b.shl(b.lshr(v, four(6)), four(4))  # noqa: E731
    halves = ((b.and_(first, four(63)), b.or_(b.and_(third, four(15)), top(first))),
              (b.and_(second, four(63)), b.or_(b.lshr(third, four(4)), top(second))))
    scales, minima = (b.sitofp(b.shuffle_vector(*pair, ir.Constant(_EIGHT_INTS, list(range(8)))), _EIGHT)
                      for pair in halves)
    return b.fmul(block.half(_EIGHT), scales), b.fmul(b.fneg(block.at(2).half(_EIGHT)), minima)


def _k4_k5(fifth_bit: bool) -> Callable:
    """Q4_K, Q5_K: `_scales_and_minima`, (32 bytes of high bits), nibbles of units in pairs."""
    def unpack(b, block):
        factors, offsets = _scales_and_minima(b, block)
        for half in range(2):
            words = _nibbles(b, block.at((48 if fifth_bit else 16) + 64 * half).load(_INTS))
            for g in range(2):
                if fifth_bit:
                    bits = _twice(b, block.at(16), (4 - 4 * half - g, 2 - 4 * half - g))
                    words[g] = b.or_(words[g], b.and_(bits, _ints(0x10101010)))
                lanes = _ints(*(4 * half + 2 * (w // 8) + g for w in range(LANES)))
                yield (_bytes(b, words[g]), b.shuffle_vector(factors, factors, lanes),
                       b.shuffle_vector(offsets, offsets, lanes))
    return unpack


def _q6_k(b, block):
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, scale; two halves of four units."""
    factor = block.at(208).half(_EIGHT)
    for half in range(2):
        scales = b.sext(block.at(192 + 8 * half).load(ir.VectorType(I8, 8)), _EIGHT_INTS)
        scales = b.fmul(factor, b.sitofp(scales, _EIGHT))
        for g, words in enumerate(_nibbles(b, block.at(64 * half).load(_INTS))):
            bits = _twice(b, block.at(128 + 32 * half), (0, -2) if g else (4, 2))
            words = b.or_(words, b.and_(bits, _ints(0x30303030)))
            scale = b.shuffle_vector(scales, scales, _ints(*(
                4 * g + 2 * (w // 8) + w % 8 // 4 for w in range(LANES))))
            yield _bytes(b, words), scale, b.fmul(scale, ir.Constant(FLOATS, [-32.0] * LANES))


_UNPACK = {
    Kind.F32: _f32, Kind.F16: _f16, Kind.BF16: _bf16, Kind.Q8_0: _q8_0,
    Kind.Q4_0: _legacy(minimum=False, fifth_bit=False), Kind.Q4_1: _legacy(minimum=True, fifth_bit=False),
    Kind.Q5_0: _legacy(minimum=False, fifth_bit=True), Kind.Q5_1: _legacy(minimum=True, fifth_bit=True),
    Kind.Q4_K: _k4_k5(fifth_bit=False), Kind.Q5_K: _k4_k5(fifth_bit=True), Kind.Q6_K: _q6_k,
}
_K4_K5_ORDER = _order(lambda g, w: 64 * (w // 8) + 32 * g + 4 * (w % 8))
_ORDERS = {Kind.Q4_K: _K4_K5_ORDER, Kind.Q5_K: _K4_K5_ORDER, Kind.Q6_K: _order(lambda g, w: 64 * g + 4 * w)}


def _format(kind: Kind) -> Format:
    elements, size = GGML_QUANT_SIZES[kind]
    columns = max(elements, UNIT)
    return Format(_UNPACK[kind], columns, size * columns // elements,
                  _ORDERS.get(kind, np.empty((0, 0, LANES), np.int64)))


FORMATS: dict[int, Format] = {kind: _format(kind) for kind in _UNPACK}
