"""Dot products of one stored row with float32 vectors, for every storage type worth a kernel.

Batch-1 speech is bound by how fast weights come from memory, so the weights stay as they lie in the file: a row is
unpacked in registers and multiplied with float32 activations, which loses nothing against a dequantised float32 copy
and reads a quarter of its bytes (Q8_0). The kernels are LLVM vector code, because no loop that numba vectorises by
itself keeps the scales out of the inner sum. Vectors have sixteen lanes; processors with shorter ones take several, in
the same order: all give the same bits.
"""

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from tts_cli.compiled.formats import F32, FLOATS, FORMATS, I32, I64, LANES, Row, fma

# Bytes ahead of the current ones to ask memory for: two pages, as the processor's own prefetchers stop at every page.
AHEAD = 8192


@intrinsic(prefer_literal=True)
def dots(typing_context, kind, tokens, row, x, step, blocks, out, out_step):
    """Dots of one row with `tokens` float32 vectors; kind and tokens are constants.

    All others are intp: addresses of the row, of the first vector (in the type's order) and of the first result, the
    distances in bytes between vectors and between results, and the row's length in blocks. The sums of a vector have
    the same order for any number of tokens: a result does not depend on what else is computed with it.
    """
    form, count = FORMATS[kind.literal_value], tokens.literal_value

    def emit(context, b, signature, arguments):
        row, x, step, blocks, out, out_step = arguments[2:]
        multiply_add = fma(b)
        entry, loop, done = b.block, b.append_basic_block("blocks"), b.append_basic_block("done")
        b.branch(loop)
        b.position_at_end(loop)
        i = b.phi(I64)
        sums = [b.phi(FLOATS) for _ in range(count)]
        block, totals = Row(b, row).at(b.mul(i, I64(form.size))), list(sums)
        for line in range(0, form.size, 64):
            _prefetch(b, block.at(AHEAD + line))
        inputs = [Row(b, b.add(b.add(x, b.mul(step, I64(t))), b.mul(i, I64(4 * form.inputs)))) for t in range(count)]
        at = 0
        for weights, scale, offset in form.unpack(b, block):
            read = len(weights) + (offset is not None)
            for t in range(count):
                own = [inputs[t].at(4 * LANES * (at + n)).load(FLOATS, 4) for n in range(read)]
                total = totals[t] if scale is None else b.fmul(weights[0], own[0])
                for n in range(scale is not None, len(weights)):
                    total = b.call(multiply_add, [weights[n], own[n], total])
                if scale is not None:
                    total = b.call(multiply_add, [scale, total, totals[t]])
                if offset is not None:
                    total = b.call(multiply_add, [offset, own[-1], total])
                totals[t] = total
            at += read
        following = b.add(i, I64(1))
        for phi, first, later in ((i, I64(0), following), *((one, ir.Constant(FLOATS, [0.0] * LANES), total)
                                                             for one, total in zip(sums, totals, strict=True))):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, b.block)
        b.cbranch(b.icmp_signed("<", following, blocks), loop, done)
        b.position_at_end(done)
        for t in range(count):
            place = b.inttoptr(b.add(out, b.mul(out_step, I64(t))), F32.as_pointer())
            b.store(_sum(b, totals[t]), place, align=4)
        return context.get_dummy_value()

    return types.void(kind, tokens, *[types.intp] * 6), emit


def _prefetch(b, place: Row) -> None:
    """A hint; addresses beyond the matrix do no harm."""
    kind = ir.FunctionType(ir.VoidType(), [place.pointer.type, I32, I32, I32])
    function = get_or_insert_function(b.module, kind, "llvm.prefetch.p0i8")
    b.call(function, [place.pointer, I32(0), I32(3), I32(1)])  # to read, keep in all caches, data


def _sum(b, vector):
    """The sum of all lanes, in halves."""
    n = LANES
    while n > 1:
        n //= 2
        halves = [b.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(I32, n), list(range(at, at + n))))
                  for at in (0, n)]
        vector = b.fadd(*halves)
    return b.extract_element(vector, I32(0))
