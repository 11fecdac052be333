"""A decoder's pass over any number of positions, compiled for the CPU, and a single product.

Every thread of a `Team` runs these functions at once, over its share of rows or heads, and meets the others where a
step needs all of the step before. What a row or a head gives does not depend on the number of threads or of positions,
so neither do the samples.

Matrices come as numbers, int64 [5]: function for their type, address, bytes per row, rows, columns; `Matrix` makes
these and keeps the memory alive. Vectors and results are float32 arrays.

numba keeps what it compiled beside the sources, or where these cannot be written in a folder of its own, as long as
this file does not change; `forget_others` looks at the other files.
"""

import contextlib
import hashlib
import math
from functools import cache
from pathlib import Path

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from tts_cli.compiled.dots import dots
from tts_cli.compiled.formats import FORMATS, LANES
from tts_cli.compiled.team import meet

_FAST = {"reassoc", "contract", "nsz"}
_TOKENS = 4  # vectors that share one unpacking of a row
_DIVISORS = np.float32([256 ** j for j in range(4)])  # see `formats`
_TILE = 16  # rows that meet the same few tokens before the next ones come: all stay in the first-level cache


def forget_others(kept: Path) -> None:
    """Delete what is kept of these functions unless it was made from the sources as they are now."""
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
    made_from = kept / "kernels.sources"
    with contextlib.suppress(OSError):  # what cannot be written is compiled anew each time
        if not made_from.exists() or made_from.read_text() != sources.hexdigest():
            kept.mkdir(parents=True, exist_ok=True)
            for file in kept.glob("kernels.*.nb?"):
                file.unlink()
            made_from.write_text(sources.hexdigest())


def are_kept() -> bool:
    """Whether an earlier run compiled these functions and numba kept them."""
    folder = decode.stats.cache_path
    return folder is not None and any(Path(folder).glob("kernels.decode-*.nbi"))


def _cached(compiler, *arguments, **options):
    """With numba's cache on disk, without one where no folder can be written."""
    def decorate(function):
        try:
            return compiler(*arguments, **options, cache=True)(function)
        except RuntimeError:
            return compiler(*arguments, **options)(function)
    return decorate


@intrinsic
def _pointer(typing_context, address):
    def emit(context, b, signature, arguments):
        return b.inttoptr(arguments[0], context.get_value_type(types.voidptr))
    return types.voidptr(types.intp), emit


@njit(nogil=True)
def _arranged(x, columns, width, order):
    """Vectors [n, at least `columns`] in the order of a `Format`, [n, inputs of a row]."""
    if len(order) == 0:
        return x
    out = np.empty((len(x), columns // width * (order.size + len(order) * LANES)), np.float32)
    for t in range(len(x)):
        at = 0
        for start in range(0, columns, width):
            for group in range(len(order)):
                last = at + order[group].size
                out[t, last:last + LANES] = 0
                for vector in range(order.shape[1]):
                    for lane in range(LANES):
                        value = x[t, start + order[group, vector, lane]]
                        out[t, at + lane] = value / _DIVISORS[vector]
                        out[t, last + lane] += value
                    at += LANES
                at += LANES
    return out


@cache
def rows_times(kind: int):
    """The C function for matrices of that type: rows `first` to `last` times n vectors, y[t, r] for all t.

    Compiled when the first such matrix is made: no file has all types.
    """
    width, order = FORMATS[kind].columns, FORMATS[kind].order

    @_cached(cfunc, types.void(*[types.intp] * 10))
    def times(address, row_bytes, columns, first, last, x, x_step, n, y, y_step):
        blocks = columns // width
        vectors = _arranged(carray(_pointer(x), (n, x_step // 4), np.float32), columns, width, order)
        step = vectors.strides[0]
        for start in range(first, last, _TILE):
            end = min(start + _TILE, last)
            for t in range(0, n - _TOKENS + 1, _TOKENS):
                for r in range(start, end):
                    dots(kind, _TOKENS, address + r * row_bytes, vectors.ctypes.data + t * step, step, blocks,
                         y + t * y_step + 4 * r, y_step)
            for t in range(n - n % _TOKENS, n):
                for r in range(start, end):
                    dots(kind, 1, address + r * row_bytes, vectors.ctypes.data + t * step, step, blocks,
                         y + t * y_step + 4 * r, y_step)
    return times


@intrinsic
def _multiply(typing_context, function, address, row_bytes, columns, first, last, x, x_step, n, y, y_step):
    """Call what `rows_times` gave, by its address."""
    def emit(context, b, signature, arguments):
        word = context.get_value_type(types.intp)
        pointer = b.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), [word] * 10).as_pointer())
        b.call(pointer, arguments[1:])
        return context.get_dummy_value()
    return types.void(*[types.intp] * 11), emit


@njit(nogil=True)
def _product(thread, threads, matrix, x, y, at):
    """This thread's rows r of the matrix times x [n, columns] into y [n, at + r]."""
    rows = matrix[3]
    _multiply(matrix[0], matrix[1], matrix[2], matrix[4], rows * thread // threads,
              rows * (thread + 1) // threads, x.ctypes.data, x.strides[0], len(x), y.ctypes.data + 4 * at, y.strides[0])


@njit(nogil=True, fastmath=_FAST)
def _rms(x, weight, eps, out):
    """out = weight * x / sqrt(mean(x^2) + eps)."""
    total = np.float32(0)
    for value in x:
        total += value * value
    scale = np.float32(1) / np.sqrt(total / np.float32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = weight[i] * (x[i] * scale)


@njit(nogil=True, fastmath=_FAST)
def _turn(x, cos, sin):
    """Rotary positions in the NeoX pairing, in place."""
    half = len(x) // 2
    for i in range(half):
        a, b = x[i], x[half + i]
        x[i] = a * cos[i] - b * sin[i]
        x[half + i] = b * cos[i] + a * sin[i]


@njit(nogil=True, fastmath=_FAST)
def _attend(query, keys, values, count, scores, out):
    """out [head_dim] = softmax(query . keys / sqrt(head_dim)) @ values over the first `count` positions."""
    width = len(query)
    scale = np.float32(1 / math.sqrt(width))
    best = np.float32(-np.inf)
    for p in range(count):
        total = np.float32(0)
        for i in range(width):
            total += query[i] * keys[p, i]
        scores[p] = total * scale
        best = max(best, scores[p])
    total = np.float32(0)
    for i in range(width):
        out[i] = 0
    for p in range(count):
        share = np.exp(scores[p] - best)
        total += share
        for i in range(width):
            out[i] += share * values[p, i]
    for i in range(width):
        out[i] /= total


@_cached(njit, nogil=True, fastmath=_FAST)
def product(thread, threads, barrier, matrix, x, y):
    """y [n, rows] = x [n, columns] @ matrix.T"""
    _product(thread, threads, matrix, x, y, 0)


@_cached(njit, nogil=True, fastmath=_FAST)
def decode(thread, threads, barrier, matrices, norms, head_norms, last_norm, eps, cos, sin, places, kv_heads, x, own,
           qkv, attended, gates, out):
    """The blocks and the final norm over n rows, each the next position of its sequence; rows of one sequence follow
    each other.

    matrices    int64 [layers, 7, 5]: q, k, v, attention out, gate, up, down
    norms       [layers, 2, H], head_norms [layers, 2, head_dim]: of queries and keys
    cos, sin    [positions, head_dim / 2]
    places      int64 [n, 4]: addresses of keys and of values [layers, kv_heads, capacity, head_dim], capacity, position
    x           [n, H], the residual stream, is overwritten; out [n, H]
    own         [threads, n, H], qkv [n, (heads + 2 kv_heads) head_dim], attended [n, heads head_dim],
                gates [2, n, intermediate] are room to work in
    """
    n, width = x.shape
    layers, head_dim = len(matrices), head_norms.shape[2]
    heads = attended.shape[1] // head_dim
    group = heads // kv_heads
    mine = own[thread]
    scores = np.empty(places[:, 3].max() + 1, np.float32)
    for layer in range(layers):
        weights = matrices[layer]
        for t in range(n):
            _rms(x[t], norms[layer, 0], eps, mine[t])
        _product(thread, threads, weights[0], mine, qkv, 0)
        _product(thread, threads, weights[1], mine, qkv, heads * head_dim)
        _product(thread, threads, weights[2], mine, qkv, (heads + kv_heads) * head_dim)
        meet(threads, barrier)
        for head in range(kv_heads * thread // threads, kv_heads * (thread + 1) // threads):
            for t in range(n):
                shape, position = (layers, kv_heads, places[t, 2], head_dim), places[t, 3]
                keys = carray(_pointer(places[t, 0]), shape, np.float32)[layer, head]
                values = carray(_pointer(places[t, 1]), shape, np.float32)[layer, head]
                rows = qkv[t].reshape((-1, head_dim))
                _rms(rows[heads + head], head_norms[layer, 1], eps, keys[position])
                _turn(keys[position], cos[position], sin[position])
                values[position] = rows[heads + kv_heads + head]
                for q in range(head * group, (head + 1) * group):
                    query = rows[q]
                    _rms(query, head_norms[layer, 0], eps, query)
                    _turn(query, cos[position], sin[position])
                    _attend(query, keys, values, position + 1, scores, attended[t, q * head_dim:(q + 1) * head_dim])
        meet(threads, barrier)
        _product(thread, threads, weights[3], attended, qkv, 0)
        for t in range(n):
            for r in range(width * thread // threads, width * (thread + 1) // threads):
                x[t, r] += qkv[t, r]
        meet(threads, barrier)
        for t in range(n):
            _rms(x[t], norms[layer, 1], eps, mine[t])
        _product(thread, threads, weights[4], mine, gates[0], 0)
        _product(thread, threads, weights[5], mine, gates[1], 0)
        size = gates.shape[2]
        for t in range(n):
            for r in range(size * thread // threads, size * (thread + 1) // threads):
                gate = gates[0, t, r]
                gates[0, t, r] = gate / (np.float32(1) + np.exp(-gate)) * gates[1, t, r]
        meet(threads, barrier)
        _product(thread, threads, weights[6], gates[0], qkv, 0)
        for t in range(n):
            for r in range(width * thread // threads, width * (thread + 1) // threads):
                x[t, r] += qkv[t, r]
        meet(threads, barrier)
    for t in range(n * thread // threads, n * (thread + 1) // threads):
        _rms(x[t], last_norm, eps, out[t])


if decode.stats.cache_path is not None:
    forget_others(Path(decode.stats.cache_path))
