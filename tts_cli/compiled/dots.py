"""Dot products of one stored row with float32 vectors, for every storage type worth a kernel.

Batch-1 speech is bound by how fast weights come from memory, so the weights stay as they lie in the file: a row is
unpacked in registers and multiplied with float32 activations, which loses nothing against a dequantised float32 copy
and reads a quarter of its bytes (Q8_0). The kernels are LLVM vector code, because no loop that numba vectorises by
itself keeps the scales out of the inner sum.

A row is read in units of 32 weights: four vectors of eight. Layouts: ggml-common.h of llama.cpp, gguf.quants.
"""

from collections.abc import Callable

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

UNIT = 32  # weights per step
LANES = 8
# Bytes ahead of the current ones to ask memory for: the processor's own prefetchers stop at every page.
AHEAD = 1536

_F32, _F16, _I8, _I32, _I64 = ir.FloatType(), ir.HalfType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS, _BYTES = (ir.VectorType(t, LANES) for t in (_F32, _I32, _I8))


class _Row:
    """The bytes of one row at a fixed place: emits loads and conversions."""

    def __init__(self, builder: ir.IRBuilder, address):
        self.b, self.pointer = builder, builder.inttoptr(address, _I8.as_pointer())

    def at(self, offset) -> "_Row":
        row = _Row.__new__(_Row)
        row.b = self.b
        row.pointer = self.b.gep(self.pointer, [_I64(offset) if isinstance(offset, int) else offset])
        return row

    def load(self, kind, align: int = 1):
        return self.b.load(self.b.bitcast(self.pointer, kind.as_pointer()), align=align)

    def half(self):
        """A float16 in all lanes. Loaded as an integer: a lone float16 load waits for an unrelated register on x86."""
        short = _splat(self.b, self.load(ir.IntType(16), 2))
        return self.b.fpext(self.b.bitcast(short, ir.VectorType(_F16, LANES)), _FLOATS)

    def byte(self):
        """One unsigned byte as i32."""
        return self.b.zext(self.load(_I8), _I32)

    def bytes(self, group: int):
        """Eight unsigned bytes as i32."""
        return self.b.zext(self.at(LANES * group).load(_BYTES), _INTS)


def _splat(b, scalar):
    vector = b.insert_element(ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined), scalar, _I32(0))
    return b.shuffle_vector(vector, vector, ir.Constant(_INTS, [0] * LANES))


def _ints(*values: int):
    return ir.Constant(_INTS, list(values) if len(values) > 1 else list(values) * LANES)


def _fma(b):
    """The function for a * b + c on vectors, fused where the processor can."""
    return get_or_insert_function(b.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32")


# Each returns the four vectors of unit `i` (an i64 value) of the row, and their common factor or None.

def _f32(b, row, i):
    unit = row.at(b.mul(i, _I64(4 * UNIT)))
    return [unit.at(4 * LANES * g).load(_FLOATS, 4) for g in range(4)], None


def _f16(b, row, i):
    unit = row.at(b.mul(i, _I64(2 * UNIT)))
    return [b.fpext(unit.at(2 * LANES * g).load(ir.VectorType(_F16, LANES), 2), _FLOATS) for g in range(4)], None


def _bf16(b, row, i):
    unit, shorts = row.at(b.mul(i, _I64(2 * UNIT))), ir.VectorType(ir.IntType(16), LANES)
    return [b.bitcast(b.shl(b.zext(unit.at(2 * LANES * g).load(shorts, 2), _INTS), _ints(16)), _FLOATS)
            for g in range(4)], None


def _q8_0(b, row, i):
    block = row.at(b.mul(i, _I64(34)))
    return [b.sitofp(b.sext(block.at(2 + LANES * g).load(_BYTES), _INTS), _FLOATS) for g in range(4)], block.half()


def _legacy(size: int, minimum: bool, fifth_bit: bool) -> Callable:
    """Q4_0, Q4_1, Q5_0, Q5_1: scale (minimum), (32 high bits), 16 bytes with weights l and l + 16 in their nibbles."""
    def unit(b, row, i):
        block, fma = row.at(b.mul(i, _I64(size))), _fma(b)
        scale, at = block.half(), 4 if minimum else 2
        offset = block.at(2).half() if minimum else None
        high = _splat(b, block.at(at).load(_I32)) if fifth_bit else None
        nibbles = block.at(at + 4 if fifth_bit else at)
        vectors = []
        for g in range(4):
            ints = nibbles.bytes(g % 2)
            ints = b.and_(ints, _ints(15)) if g < 2 else b.lshr(ints, _ints(4))
            if fifth_bit:
                bit = b.and_(b.lshr(high, _ints(*range(LANES * g, LANES * (g + 1)))), _ints(1))
                ints = b.or_(ints, b.shl(bit, _ints(4)))
            if not minimum:
                ints = b.sub(ints, _ints(16 if fifth_bit else 8))
            floats = b.sitofp(ints, _FLOATS)
            vectors.append(b.call(fma, [floats, scale, offset]) if minimum else floats)
        return vectors, None if minimum else scale
    return unit


def _super_block(b, row, i, size: int):
    """(super-block of 256 weights that unit i lies in, number of the unit in it as i64)."""
    return row.at(b.mul(b.lshr(i, _I64(3)), _I64(size))), b.and_(i, _I64(7))


def _k4_k5(size: int, fifth_bit: bool) -> Callable:
    """Q4_K, Q5_K: scale, minimum, 8 six-bit scales and minima in 12 bytes, (high bits), nibbles of units in pairs."""
    def unit(b, row, i):
        (block, j), fma = _super_block(b, row, i, size), _fma(b)
        packed, late = block.at(4), b.icmp_unsigned('>=', j, _I64(4))
        here, there = packed.at(j).byte(), packed.at(b.add(j, _I64(4))).byte()
        before = packed.at(b.select(late, b.sub(j, _I64(4)), j)).byte()
        top = lambda byte: b.shl(b.lshr(byte, _I32(6)), _I32(4))  # noqa: E731
        scale = b.select(late, b.or_(b.and_(there, _I32(15)), top(before)), b.and_(here, _I32(63)))
        minimum = b.select(late, b.or_(b.lshr(there, _I32(4)), top(here)), b.and_(there, _I32(63)))
        factor = b.fmul(block.half(), b.sitofp(_splat(b, scale), _FLOATS))
        offset = b.fneg(b.fmul(block.at(2).half(), b.sitofp(_splat(b, minimum), _FLOATS)))
        nibbles = block.at(48 if fifth_bit else 16).at(b.mul(b.lshr(j, _I64(1)), _I64(32)))
        shift = _splat(b, b.trunc(b.mul(b.and_(j, _I64(1)), _I64(4)), _I32))
        vectors = []
        for g in range(4):
            ints = b.and_(b.lshr(nibbles.bytes(g), shift), _ints(15))
            if fifth_bit:
                bit = b.and_(b.lshr(block.at(16).bytes(g), _splat(b, b.trunc(j, _I32))), _ints(1))
                ints = b.or_(ints, b.shl(bit, _ints(4)))
            vectors.append(b.call(fma, [b.sitofp(ints, _FLOATS), factor, offset]))
        return vectors, None
    return unit


def _q6_k(b, row, i):
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, scale; two halves of four units."""
    block, j = _super_block(b, row, i, 210)
    half, k = b.lshr(j, _I64(2)), b.and_(j, _I64(3))
    low = block.at(b.add(b.mul(half, _I64(64)), b.mul(b.and_(k, _I64(1)), _I64(32))))
    high = block.at(128).at(b.mul(half, _I64(32)))
    low_shift = _splat(b, b.trunc(b.mul(b.lshr(k, _I64(1)), _I64(4)), _I32))
    high_shift = _splat(b, b.trunc(b.mul(k, _I64(2)), _I32))
    scales, factor = block.at(192).at(b.mul(j, _I64(2))), block.at(208).half()
    vectors = []
    for g in range(4):
        scale = b.fmul(factor, b.sitofp(_splat(b, b.sext(scales.at(g // 2).load(_I8), _I32)), _FLOATS))
        bits = b.and_(b.lshr(high.bytes(g), high_shift), _ints(3))
        ints = b.or_(b.and_(b.lshr(low.bytes(g), low_shift), _ints(15)), b.shl(bits, _ints(4)))
        vectors.append(b.fmul(b.sitofp(b.sub(ints, _ints(32)), _FLOATS), scale))
    return vectors, None


UNITS: dict[int, Callable] = {
    Kind.F32: _f32, Kind.F16: _f16, Kind.BF16: _bf16, Kind.Q8_0: _q8_0,
    Kind.Q4_0: _legacy(18, minimum=False, fifth_bit=False), Kind.Q4_1: _legacy(20, minimum=True, fifth_bit=False),
    Kind.Q5_0: _legacy(22, minimum=False, fifth_bit=True), Kind.Q5_1: _legacy(24, minimum=True, fifth_bit=True),
    Kind.Q4_K: _k4_k5(144, fifth_bit=False), Kind.Q5_K: _k4_k5(176, fifth_bit=True), Kind.Q6_K: _q6_k,
}


@intrinsic(prefer_literal=True)
def dots(typing_context, kind, tokens, row, x, step, units, out, out_step):
    """Dots of one row with `tokens` float32 vectors; kind and tokens are constants.

    All others are intp: addresses of the row, of the first vector and of the first result, the distances in bytes
    between vectors and between results, and the row's length in units. Two sums per vector, in the same order for any
    number of tokens: a result does not depend on what else is computed with it.
    """
    unpack, count = UNITS[kind.literal_value], tokens.literal_value
    elements, size = GGML_QUANT_SIZES[Kind(kind.literal_value)]
    unit_bytes = size * UNIT // elements

    def emit(context, b, signature, arguments):
        row, x, step, units, out, out_step = arguments[2:]
        fma = _fma(b)
        entry, loop, done = b.block, b.append_basic_block("units"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        i = b.phi(_I64)
        sums = [b.phi(_FLOATS) for _ in range(2 * count)]  # of vector t: 2 t and 2 t + 1
        for line in range(0, unit_bytes, 64):
            _prefetch(b, _Row(b, row).at(b.mul(i, _I64(unit_bytes))).at(AHEAD + line))
        weights, scale = unpack(b, _Row(b, row), i)
        at, totals = b.mul(i, _I64(4 * UNIT)), list(sums)
        for t in range(count):
            vector = _Row(b, b.add(b.add(x, b.mul(step, _I64(t))), at))
            values = [vector.at(4 * LANES * g).load(_FLOATS, 4) for g in range(4)]
            for half in range(2):
                total = totals[2 * t + half]
                first, second = zip(weights[half::2], values[half::2], strict=True)
                if scale is None:
                    total = b.call(fma, [*second, b.call(fma, [*first, total])])
                else:
                    total = b.call(fma, [scale, b.call(fma, [*second, b.fmul(*first)]), total])
                totals[2 * t + half] = total
        following = b.add(i, _I64(1))
        for phi, first, later in ((i, _I64(0), following), *((one, ir.Constant(_FLOATS, [0.0] * LANES), total)
                                                             for one, total in zip(sums, totals, strict=True))):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, b.block)
        b.cbranch(b.icmp_signed("<", following, units), loop, done)
        b.position_at_end(done)
        for t in range(count):
            place = b.inttoptr(b.add(out, b.mul(out_step, _I64(t))), _F32.as_pointer())
            b.store(_sum(b, b.fadd(totals[2 * t], totals[2 * t + 1])), place, align=4)
        return context.get_dummy_value()

    return types.void(kind, tokens, *[types.intp] * 6), emit


def _prefetch(b, place: _Row) -> None:
    """A hint; addresses beyond the matrix do no harm."""
    kind = ir.FunctionType(ir.VoidType(), [place.pointer.type, _I32, _I32, _I32])
    function = get_or_insert_function(b.module, kind, "llvm.prefetch.p0i8")
    b.call(function, [place.pointer, _I32(0), _I32(3), _I32(1)])  # to read, keep in all caches, data


def _sum(b, vector):
    """The sum of eight lanes, in halves."""
    n = LANES
    while n > 1:
        n //= 2
        halves = [b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, n), list(range(at, at + n))))
                  for at in (0, n)]
        vector = b.fadd(*halves)
    return b.extract_element(vector, _I32(0))
