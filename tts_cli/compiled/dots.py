"""Dot products of one stored row with float32 vectors, for every storage type worth a kernel.

Batch-1 speech is bound by how fast weights come from memory, so the weights stay as they lie in the file: a row is
unpacked in registers and multiplied with float32 activations, which loses nothing against a dequantised float32 copy
and reads a quarter of its bytes (Q8_0). The kernels are LLVM vector code, because no loop that numba vectorises by
itself keeps the scales out of the inner sum.

A row is read in units of 32 weights, two vectors of sixteen (processors with shorter vectors take several, in the same
order: all give the same bits); a block of a type has one unit or eight. Layouts: ggml-common.h of llama.cpp,
gguf.quants.
"""

from collections.abc import Callable

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from tts_cli.compiled import UNIT

LANES = 16
# Bytes ahead of the current ones to ask memory for: two pages, as the processor's own prefetchers stop at every page.
AHEAD = 8192

_F32, _F16, _I8, _I32, _I64 = ir.FloatType(), ir.HalfType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_FLOATS, _HALVES, _INTS, _SHORTS, _BYTES = (ir.VectorType(t, LANES) for t in (_F32, _F16, _I32, ir.IntType(16), _I8))
_EIGHT, _EIGHT_INTS = ir.VectorType(_F32, 8), ir.VectorType(_I32, 8)  # scales of a super-block


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

    def half(self, kind=None):
        """A float16 in all lanes. Loaded as an integer: a lone float16 load waits for an unrelated register on x86."""
        kind = kind or _FLOATS
        short = _splat(self.b, self.load(ir.IntType(16), 2), kind.count)
        return self.b.fpext(self.b.bitcast(short, ir.VectorType(ir.HalfType(), kind.count)), kind)

    def bytes(self, group: int):
        """`LANES` unsigned bytes as i32."""
        return self.b.zext(self.at(LANES * group).load(_BYTES), _INTS)


def _splat(b, scalar, lanes: int = LANES):
    vector = b.insert_element(ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined), scalar, _I32(0))
    return b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def _lane(b, vector, lane: int):
    """One lane of a vector of any length in all."""
    return b.shuffle_vector(vector, vector, ir.Constant(_INTS, [lane] * LANES))


def _ints(*values: int):
    return ir.Constant(_INTS, list(values) if len(values) > 1 else list(values) * LANES)


def _fma(b):
    """The function for a * b + c on vectors, fused where the processor can."""
    return get_or_insert_function(b.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32")


# Each yields, for the units of one block, its two vectors and their common factor or None.

def _f32(b, block):
    yield [block.at(4 * LANES * g).load(_FLOATS, 4) for g in range(2)], None


def _f16(b, block):
    yield [b.fpext(block.at(2 * LANES * g).load(_HALVES, 2), _FLOATS) for g in range(2)], None


def _bf16(b, block):
    yield [b.bitcast(b.shl(b.zext(block.at(2 * LANES * g).load(_SHORTS, 2), _INTS), _ints(16)), _FLOATS)
           for g in range(2)], None


def _q8_0(b, block):
    yield [b.sitofp(b.sext(block.at(2 + LANES * g).load(_BYTES), _INTS), _FLOATS) for g in range(2)], block.half()


def _legacy(minimum: bool, fifth_bit: bool) -> Callable:
    """Q4_0, Q4_1, Q5_0, Q5_1: scale (minimum), (32 high bits), 16 bytes with weights l and l + 16 in their nibbles."""
    def unpack(b, block):
        scale, at = block.half(), 4 if minimum else 2
        high = _splat(b, block.at(at).load(_I32)) if fifth_bit else None
        nibbles = block.at(at + 4 if fifth_bit else at).bytes(0)
        vectors = []
        for g in range(2):
            ints = b.lshr(nibbles, _ints(4)) if g else b.and_(nibbles, _ints(15))
            if fifth_bit:
                bit = b.and_(b.lshr(high, _ints(*range(LANES * g, LANES * (g + 1)))), _ints(1))
                ints = b.or_(ints, b.shl(bit, _ints(4)))
            if not minimum:
                ints = b.sub(ints, _ints(16 if fifth_bit else 8))
            vectors.append(b.sitofp(ints, _FLOATS))
        if minimum:
            offset = block.at(2).half()
            vectors, scale = [b.call(_fma(b), [vector, scale, offset]) for vector in vectors], None
        yield vectors, scale
    return unpack


def _six_bit(b, packed: _Row):
    """The 8 scales and the 8 minima of Q4_K and Q5_K from 12 bytes: low six bits of the first and the second four;
    for the later units nibbles of the last four, whose top bits are those of the first eight."""
    first, second, third = (b.zext(packed.at(at).load(ir.VectorType(_I8, 4)), ir.VectorType(_I32, 4))
                            for at in (0, 4, 8))
    four = lambda n: ir.Constant(first.type, [n] * 4)  # noqa: E731
    top = lambda v: b.shl(b.lshr(v, four(6)), four(4))  # noqa: E731
    halves = ((b.and_(first, four(63)), b.or_(b.and_(third, four(15)), top(first))),
              (b.and_(second, four(63)), b.or_(b.lshr(third, four(4)), top(second))))
    return [b.shuffle_vector(*pair, ir.Constant(_EIGHT_INTS, list(range(8)))) for pair in halves]


def _k4_k5(fifth_bit: bool) -> Callable:
    """Q4_K, Q5_K: scale, minimum, `_six_bit` scales and minima, (32 bytes of high bits), nibbles of units in pairs."""
    def unpack(b, block):
        scales, minima = _six_bit(b, block.at(4))
        factors = b.fmul(block.half(_EIGHT), b.sitofp(scales, _EIGHT))
        offsets = b.fmul(b.fneg(block.at(2).half(_EIGHT)), b.sitofp(minima, _EIGHT))
        high = [block.at(16).bytes(g) for g in range(2)] if fifth_bit else None
        for unit in range(8):
            if unit % 2 == 0:
                nibbles = [block.at((48 if fifth_bit else 16) + 16 * unit).bytes(g) for g in range(2)]
            vectors = []
            for g in range(2):
                ints = b.and_(nibbles[g], _ints(15)) if unit % 2 == 0 else b.lshr(nibbles[g], _ints(4))
                if fifth_bit:
                    shift = b.shl if unit < 4 else b.lshr
                    ints = b.or_(ints, b.and_(shift(high[g], _ints(abs(4 - unit))), _ints(16)))
                vectors.append(b.call(_fma(b), [b.sitofp(ints, _FLOATS), _lane(b, factors, unit),
                                                _lane(b, offsets, unit)]))
            yield vectors, None
    return unpack


def _q6_k(b, block):
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, scale; two halves of four units."""
    factor = block.at(208).half(_EIGHT)
    for half in range(2):
        scales = b.sext(block.at(192 + 8 * half).load(ir.VectorType(_I8, 8)), _EIGHT_INTS)
        scales = b.fmul(factor, b.sitofp(scales, _EIGHT))
        centers = b.fmul(scales, ir.Constant(_EIGHT, [-32.0] * 8))
        low = [block.at(64 * half).bytes(g) for g in range(4)]
        high = [block.at(128 + 32 * half).bytes(g) for g in range(2)]
        for unit in range(4):
            vectors = []
            for g in range(2):
                nibble = low[2 * (unit % 2) + g]
                nibble = b.and_(nibble, _ints(15)) if unit < 2 else b.lshr(nibble, _ints(4))
                shift = b.shl if unit < 3 else b.lshr
                bits = b.and_(shift(high[g], _ints(abs(4 - 2 * unit))), _ints(48))
                lane = 2 * unit + g
                vectors.append(b.call(_fma(b), [b.sitofp(b.or_(nibble, bits), _FLOATS), _lane(b, scales, lane),
                                                _lane(b, centers, lane)]))
            yield vectors, None


UNITS: dict[int, Callable] = {
    Kind.F32: _f32, Kind.F16: _f16, Kind.BF16: _bf16, Kind.Q8_0: _q8_0,
    Kind.Q4_0: _legacy(minimum=False, fifth_bit=False), Kind.Q4_1: _legacy(minimum=True, fifth_bit=False),
    Kind.Q5_0: _legacy(minimum=False, fifth_bit=True), Kind.Q5_1: _legacy(minimum=True, fifth_bit=True),
    Kind.Q4_K: _k4_k5(fifth_bit=False), Kind.Q5_K: _k4_k5(fifth_bit=True), Kind.Q6_K: _q6_k,
}


@intrinsic(prefer_literal=True)
def dots(typing_context, kind, tokens, row, x, step, units, out, out_step):
    """Dots of one row with `tokens` float32 vectors; kind and tokens are constants.

    All others are intp: addresses of the row, of the first vector and of the first result, the distances in bytes
    between vectors and between results, and the row's length in units. The sums of a vector have the same order for any
    number of tokens: a result does not depend on what else is computed with it.
    """
    unpack, count = UNITS[kind.literal_value], tokens.literal_value
    elements, size = GGML_QUANT_SIZES[Kind(kind.literal_value)]
    in_block = max(elements, UNIT) // UNIT  # units
    block_bytes = size * UNIT * in_block // elements

    def emit(context, b, signature, arguments):
        row, x, step, units, out, out_step = arguments[2:]
        fma = _fma(b)
        entry, loop, done = b.block, b.append_basic_block("units"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        i = b.phi(_I64)
        sums = [b.phi(_FLOATS) for _ in range(count)]
        block, totals = _Row(b, row).at(b.mul(i, _I64(block_bytes))), list(sums)
        for line in range(0, block_bytes, 64):
            _prefetch(b, block.at(AHEAD + line))
        vectors = [_Row(b, b.add(b.add(x, b.mul(step, _I64(t))), b.mul(i, _I64(4 * UNIT * in_block))))
                   for t in range(count)]
        for unit, (weights, scale) in enumerate(unpack(b, block)):
            for t, vector in enumerate(vectors):
                first, second = [vector.at(4 * (UNIT * unit + LANES * g)).load(_FLOATS, 4) for g in range(2)]
                if scale is None:
                    totals[t] = b.call(fma, [weights[1], second, b.call(fma, [weights[0], first, totals[t]])])
                else:
                    product = b.call(fma, [weights[1], second, b.fmul(weights[0], first)])
                    totals[t] = b.call(fma, [scale, product, totals[t]])
        following = b.add(i, _I64(1))
        for phi, first, later in ((i, _I64(0), following), *((one, ir.Constant(_FLOATS, [0.0] * LANES), total)
                                                             for one, total in zip(sums, totals, strict=True))):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, b.block)
        b.cbranch(b.icmp_signed("<", b.mul(following, _I64(in_block)), units), loop, done)
        b.position_at_end(done)
        for t in range(count):
            place = b.inttoptr(b.add(out, b.mul(out_step, _I64(t))), _F32.as_pointer())
            b.store(_sum(b, totals[t]), place, align=4)
        return context.get_dummy_value()

    return types.void(kind, tokens, *[types.intp] * 6), emit


def _prefetch(b, place: _Row) -> None:
    """A hint; addresses beyond the matrix do no harm."""
    kind = ir.FunctionType(ir.VoidType(), [place.pointer.type, _I32, _I32, _I32])
    function = get_or_insert_function(b.module, kind, "llvm.prefetch.p0i8")
    b.call(function, [place.pointer, _I32(0), _I32(3), _I32(1)])  # to read, keep in all caches, data


def _sum(b, vector):
    """The sum of all lanes, in halves."""
    n = LANES
    while n > 1:
        n //= 2
        halves = [b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, n), list(range(at, at + n))))
                  for at in (0, n)]
        vector = b.fadd(*halves)
    return b.extract_element(vector, _I32(0))
