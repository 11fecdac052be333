"""The decoder block that talker and code predictor share, its key/value cache, and rotary positions.

Shapes: a run of n positions is [n, H]; one position, [H] or [1, H], takes the matrix-vector kernels (on CPUs up to
twice as fast as a one-row matrix product). Linear weights are in the compute dtype; norms, rotary angles and the
residual stream stay in float32 (lower precision there is audible, and costs nothing to avoid).
"""

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_cli.compiled import UNIT

if TYPE_CHECKING:
    from tts_cli.compiled.matrix import Matrix, MatrixStack


@dataclass(frozen=True)
class TransformerConfig:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    rms_eps: float


def fit_kernels(config: TransformerConfig) -> bool:
    """Whether the compiled kernels take rows of these lengths."""
    return not any(n % UNIT for n in (config.hidden, config.intermediate, config.heads * config.head_dim))


def weight(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """An unset parameter; the loader (or a trainer) fills it."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


def linear(x: Tensor, w: "Tensor | Matrix", bias: Tensor | None = None) -> Tensor:
    """x @ w.T (+ bias) in w's dtype, returned in float32. x: [K] or [n, K], w: [N, K], a tensor or a stored matrix."""
    y = product(x, w).float() if isinstance(w, Tensor) else w.times(x)
    return y if bias is None else y + bias


def product(x: Tensor, w: Tensor) -> Tensor:
    """`linear`'s, left in w's dtype: sums with float32 widen it on the way, in one kernel less."""
    x = x.to(w.dtype)
    if x.numel() == x.shape[-1]:  # one row
        return torch.mv(w, x.flatten()).view(*x.shape[:-1], -1)
    return F.linear(x, w)


def dense(x: Tensor, w: "Tensor | MatrixStack", bias: Tensor | None = None) -> Tensor:
    """x [n, K] @ w.T (+ bias) -> [n, N]: `F.linear`, or for float32 on the CPU the compiled kernel.

    BLAS repacks the whole weight for any number of rows; the kernel reads it once, as fast as memory gives it (2 x with
    4 rows, even from 32 on), and a row has the same bits in any company, so that chunks of a stream differ less.
    """
    if not isinstance(w, Tensor):
        y = w.times(x)
    elif w.device.type != "cpu" or w.dtype != torch.float32 or w.shape[1] % UNIT or torch.is_grad_enabled():
        return F.linear(x, w, bias)
    else:
        from tts_cli.compiled.matrix import times_float32  # numba takes a while to import

        y = times_float32(x, w)
    return y if bias is None else y + bias


def rms_norm(x: Tensor, w: Tensor | None, eps: float) -> Tensor:
    """w * x / sqrt(mean(x^2) + eps) over the last dimension, float32."""
    return F.rms_norm(x, (x.shape[-1],), w, eps)


class Rope:
    """Rotary positions in the NeoX pairing (i with i + head_dim/2), angles in float32.

    Qwen3-TTS declares an interleaved three-axis rope; its three position streams are always equal, so it is exactly
    this one. The table grows with the longest position asked for and is shared by all layers.
    """

    def __init__(self, head_dim: int, theta: float, device: torch.device):
        self.frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
        self._tables = (torch.empty(0, 1, head_dim, device=device),) * 2

    def at(self, start: int, count: int) -> tuple[Tensor, Tensor]:
        """(cos, signed sin) for positions start .. start+count-1, each [count, 1, head_dim]."""
        tables = self._tables  # both at once: another thread may grow them
        if start + count > len(tables[0]):
            positions = torch.arange(max(2 * len(tables[0]), start + count, 64), device=self.frequencies.device)
            angles = positions[:, None].float() * self.frequencies
            cos, sin = angles.cos(), angles.sin()
            tables = self._tables = torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]
        return tuple(table[start:start + count] for table in tables)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [n, heads, head_dim] by the angles of `Rope.at`."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


@dataclass
class StreamState:
    """What a causal network carries from one block of its input to the next.

    frames: positions its attention has seen; keys and values by layer, tails of convolutions by their slot.
    """

    frames: int = 0
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    tails: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class KVCache:
    """Keys and values of all layers, [layers, kv_heads, capacity, head_dim], `length` positions filled."""

    k: Tensor
    v: Tensor
    length: int = 0
    mask: ClassVar[None] = None  # one more position sees all that is filled

    @classmethod
    def new(cls, config: TransformerConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> "KVCache":
        shape = (config.layers, config.kv_heads, capacity, config.head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))

    def reserve(self, count: int) -> None:
        """Make room for `count` more positions (doubling, so that a long utterance copies little)."""
        needed = self.length + count
        capacity = self.k.shape[2]
        if needed > capacity:
            extra = max(needed, 2 * capacity) - capacity
            self.k = F.pad(self.k, (0, 0, 0, extra))
            self.v = F.pad(self.v, (0, 0, 0, extra))

    def begin(self, rope: Rope, count: int) -> tuple[Tensor, Tensor]:
        """Make room for a pass over `count` more positions; their angles."""
        self.reserve(count)
        return rope.at(self.length, count)

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write a pass's k and v [n, kv_heads, head_dim]; all there are now, those included, [1, kv_heads, positions,
        head_dim]."""
        end = self.length + len(k)
        keys, values = self.k[layer, :, :end], self.v[layer, :, :end]
        keys[:, self.length:], values[:, self.length:] = k.transpose(0, 1), v.transpose(0, 1)
        return keys[None], values[None]

    def end(self, count: int) -> None:
        self.length += count


@dataclass
class StaticCache:
    """A cache of several sequences for passes over one position of each, that a CUDA graph can hold: its shapes stay
    and its places are a tensor.

    k, v      [layers, sequences, kv_heads, capacity, head_dim]; what is not written yet must be finite
    position  int64 [sequences], where the next pass writes; it is the caller's to move on
    angles    of all positions, as `Rope.at` gives them
    rows      0, 1, .. sequences - 1
    mask      [sequences, 1, 1, capacity], 0 for what the current pass sees and -inf for the rest
    """

    k: Tensor
    v: Tensor
    position: Tensor
    angles: tuple[Tensor, Tensor]
    rows: Tensor
    mask: Tensor | None = None

    @property
    def capacity(self) -> int:
        return self.k.shape[3]

    def sequence(self, row: int) -> KVCache:
        """The memory of one sequence as an empty cache, to read a prompt into it."""
        return KVCache(self.k[:, row], self.v[:, row])

    def begin(self, rope: Rope, count: int) -> tuple[Tensor, Tensor]:
        later = torch.arange(self.capacity, device=self.k.device) > self.position[:, None]
        self.mask = torch.zeros_like(later, dtype=self.k.dtype).masked_fill(later, -torch.inf)[:, None, None]
        cos, sin = self.angles
        return cos[self.position], sin[self.position]

    def store(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for whole, new in ((self.k, k), (self.v, v)):
            whole[layer][self.rows, :, self.position] = new.to(whole.dtype)
        return self.k[layer], self.v[layer]

    def end(self, count: int) -> None:
        """Nothing: a pass that is made twice writes the same place twice."""


class Block(nn.Module):
    """Pre-norm attention and SwiGLU with per-head RMS norm on queries and keys (the Qwen3 block).

    The q, k, v and the gate, up matrices lie stacked in one weight each: fewer and larger products.
    """

    def __init__(self, config: TransformerConfig, dtype: torch.dtype):
        super().__init__()
        c = self.config = config
        self.attn_norm = weight(c.hidden)
        self.qkv = weight((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden, dtype=dtype)
        self.q_norm = weight(c.head_dim)
        self.k_norm = weight(c.head_dim)
        self.attn_out = weight(c.hidden, c.heads * c.head_dim, dtype=dtype)
        self.ffn_norm = weight(c.hidden)
        self.gate_up = weight(2 * c.intermediate, c.hidden, dtype=dtype)
        self.ffn_down = weight(c.hidden, c.intermediate, dtype=dtype)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache | StaticCache, layer: int) -> Tensor:
        """x [H] or [n, H], the cache's next positions, or the next of each of its sequences; writes those positions of
        `layer` into the cache."""
        x = x + product(self._attention(rms_norm(x, self.attn_norm, self.config.rms_eps), rope, cache, layer),
                        self.attn_out)
        gate, up = linear(rms_norm(x, self.ffn_norm, self.config.rms_eps), self.gate_up).chunk(2, -1)
        return x + product(F.silu(gate) * up, self.ffn_down)

    def _attention(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: KVCache | StaticCache, layer: int) -> Tensor:
        c = self.config
        qkv = product(x, self.qkv).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
        n = len(qkv)
        qk = rms_norm(qkv[:, :-c.kv_heads].float(), None, c.rms_eps)
        qk[:, :c.heads] *= self.q_norm
        qk[:, c.heads:] *= self.k_norm
        qk = rotate(qk, rope).to(cache.k.dtype)
        k, v = cache.store(layer, qk[:, c.heads:], qkv[:, -c.kv_heads:])
        q = qk[:, :c.heads]
        if n == len(k):  # one position: the heads that share a key head are the query rows of one product
            out = F.scaled_dot_product_attention(q.view(n, c.kv_heads, -1, c.head_dim), k, v, attn_mask=cache.mask)
            return out.reshape(x.shape[:-1] + (-1,))
        past = k.shape[2] - n
        visible = None if past == 0 else torch.ones(n, past + n, dtype=torch.bool, device=x.device).tril(past)
        out = F.scaled_dot_product_attention(q.transpose(0, 1)[None], k, v, attn_mask=visible,
                                             is_causal=visible is None, enable_gqa=True)
        return out[0].transpose(0, 1).reshape(n, -1)


class Decoder(nn.Module):
    """A stack of blocks and the final norm."""

    def __init__(self, config: TransformerConfig, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, dtype) for _ in range(config.layers))
        self.norm = weight(config.hidden)
        self._rope: Rope | None = None

    def forward(self, x: Tensor, cache: KVCache | StaticCache) -> Tensor:
        """x [H] or [n, H] float32 -> the same shape after the final norm; a `KVCache` grows by n positions."""
        n = 1 if x.dim() == 1 else len(x)
        angles = cache.begin(self.rope, n)
        for layer, block in enumerate(self.blocks):
            x = block(x, angles, cache, layer)
        cache.end(n)
        return rms_norm(x, self.norm, self.config.rms_eps)

    def together(self, rows: Tensor, caches: list[KVCache]) -> Tensor:
        """One more position of each of several sequences: rows [n, H] and their caches -> [n, H].

        A cache may come several times, then its rows follow each other.
        """
        if all(cache is caches[0] for cache in caches):
            return self(rows, caches[0])
        outputs: list[Tensor] = []
        for _, run in groupby(zip(rows, caches, strict=True), key=lambda pair: id(pair[1])):
            own, (cache, *_) = zip(*run, strict=True)
            outputs.append(self(torch.stack(own), cache))
        return torch.cat(outputs)

    @property
    def rope(self) -> Rope:
        if self._rope is None:
            self._rope = Rope(self.config.head_dim, self.config.rope_theta, self.norm.device)
        return self._rope

    @property
    def nbytes(self) -> int:
        """Bytes of weights that one pass reads."""
        return sum(p.nbytes for p in self.parameters())

    def new_cache(self, capacity: int) -> KVCache:
        """Float32 on the CPU (its attention kernel is twice as fast there), the compute dtype elsewhere."""
        w = self.blocks[0].qkv
        dtype = torch.float32 if w.device.type == "cpu" else w.dtype
        return KVCache.new(self.config, capacity, dtype, w.device)

    def static_cache(self, sequences: int, capacity: int) -> StaticCache:
        """All zeros, at position 0."""
        k, c = self.new_cache(0).k, self.config  # of the right dtype, on the right device
        k, v = (k.new_zeros(c.layers, sequences, c.kv_heads, capacity, c.head_dim) for _ in range(2))
        rows = torch.arange(sequences, device=k.device)
        return StaticCache(k, v, torch.zeros_like(rows), self.rope.at(0, capacity), rows)
