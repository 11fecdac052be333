"""Talker and code predictor on the CPU: their matrices stay in the file, and compiled code runs the decoder.

These classes stand where `layers.Decoder` and parameters stand on other devices; `Talker`, `CodePredictor` and the loop
do not know the difference.
"""

import math
from collections import Counter

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn

from tts_cli.compiled import kernels
from tts_cli.compiled.matrix import Matrix, MatrixStack, usable
from tts_cli.compiled.team import Team, team_of
from tts_cli.gguf.file import GGUFFile
from tts_cli.qwen3tts.layers import Decoder, KVCache, Rope, TransformerConfig


def use_stored(file: GGUFFile, module: nn.Module, names: dict[str, tuple[str, ...]], dtype: torch.dtype) -> None:
    """Let talker or predictor compute with the tensors in `file`; `names` says which stand for each parameter.

    dtype  bfloat16: see `read_matrix`
    """
    team, narrow = team_of(torch.get_num_threads()), dtype == torch.bfloat16
    module.decoder = _stored_decoder(module.decoder, names, file, narrow, team)
    for name, like in list(module.named_parameters(recurse=False)):
        (tensor,) = names[name]
        delattr(module, name)
        if name.endswith("bias"):
            setattr(module, name, torch.from_numpy(_vector(file, tensor, len(like))))
        elif name.endswith(("embedding", "embeddings")):
            setattr(module, name, StoredRows(file, tensor, tuple(like.shape)))
        else:
            setattr(module, name, read_matrix(file, tensor, tuple(like.shape), narrow, team))


# Their weights are large and their columns few: 2 x as fast from half the memory. Later ones are faster as tensors.
_EARLY_CONVOLUTIONS = ("pre_conv.weight", "entry.weight")


def use_stored_rows(file: GGUFFile, code2wav: nn.Module, names: dict[str, tuple[str, ...]]) -> None:
    """Let the vocoder, too, multiply with the file's bytes and look up its codes there; most convolutions need
    tensors."""
    team = team_of(torch.get_num_threads())
    for path, like in list(code2wav.named_parameters()):
        if (stored := _stored_weight(file, path, names[path], tuple(like.shape), team)) is not None:
            parent, _, name = path.rpartition(".")
            module = code2wav.get_submodule(parent)
            delattr(module, name)
            setattr(module, name, stored)


def _stored_weight(file: GGUFFile, path: str, tensors: tuple[str, ...], shape: tuple[int, ...],
                   team: Team) -> "StoredRows | MatrixStack | None":
    """What stands for a parameter of the vocoder; None where a tensor must."""
    infos = [file.tensor(tensor) for tensor in tensors]
    if path in ("first_codebook", "rest_codebooks"):
        return StoredRows(file, *tensors, shape)
    if len(shape) == 2 and all(usable(info.type, info.shape) for info in infos):
        rows = shape[0] // len(infos)  # q, k, v or gate, up
        return MatrixStack([read_matrix(file, tensor, (rows, shape[1]), False, team) for tensor in tensors])
    rows = shape[0], math.prod(shape[1:])
    if path in _EARLY_CONVOLUTIONS and infos[0].type in (Kind.F16, Kind.BF16) and usable(infos[0].type, rows):
        file.tensor(*tensors, shape)
        return MatrixStack([Matrix(file.raw(*tensors).reshape(rows[0], -1), infos[0].type, rows, team)])
    return None


def _stored_decoder(decoder: Decoder, names: dict[str, tuple[str, ...]], file: GGUFFile, narrow: bool,
                    team: Team) -> "CompiledDecoder":
    c = decoder.config
    queries, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes = [(queries, c.hidden), (keys, c.hidden), (keys, c.hidden), (c.hidden, queries),
              (c.intermediate, c.hidden), (c.intermediate, c.hidden), (c.hidden, c.intermediate)]

    def tensors(layer: int, *parameters: str) -> list[str]:
        return [tensor for name in parameters for tensor in names[f"decoder.blocks.{layer}.{name}"]]

    def norms(width: int, *parameters: str) -> np.ndarray:
        return np.array([[_vector(file, tensor, width) for tensor in tensors(i, *parameters)] for i in layers])

    layers = range(c.layers)
    matrices = [[read_matrix(file, tensor, shape, narrow, team) for tensor, shape in
                 zip(tensors(i, "qkv", "attn_out", "gate_up", "ffn_down"), shapes, strict=True)] for i in layers]
    return CompiledDecoder(c, matrices, norms(c.hidden, "attn_norm", "ffn_norm"),
                           norms(c.head_dim, "q_norm", "k_norm"), _vector(file, *names["decoder.norm"], c.hidden), team)


def _vector(file: GGUFFile, name: str, length: int) -> np.ndarray:
    file.tensor(name, (length,))
    return file.rows(name, [0])[0]


def read_matrix(file: GGUFFile, name: str, shape: tuple[int, ...], narrow: bool, team: Team) -> Matrix:
    """The tensor where it lies, or as a copy when its type has no kernel.

    narrow  keep float32 matrices, and those that must be copied, as bfloat16

    Raises `ModelFileError` when it is not of that shape.
    """
    info = file.tensor(name, shape)
    if usable(info.type, info.shape) and not (narrow and info.type == Kind.F32):
        return Matrix(file.raw(name), info.type, info.shape, team)
    kind, dtype = (Kind.BF16, torch.bfloat16) if narrow else (Kind.F32, torch.float32)
    copy = torch.empty(math.prod(info.shape[:-1]), info.shape[-1], dtype=dtype)
    file.read_into(name, copy)
    return Matrix(copy.view(torch.uint8).numpy(), kind, info.shape, team)


class StoredRows:
    """An embedding table [..., rows, width] of which single rows are read from the file and become float32."""

    def __init__(self, file: GGUFFile, name: str, shape: tuple[int, ...]):
        self._file, self._name = file, name
        self.shape = file.tensor(name, shape).shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor | int | tuple) -> Tensor:
        """`table[row]` or `table[book, row]` with numbers or tensors of them, float32, as with a tensor."""
        books = index if isinstance(index, tuple) else (index,)
        flat = np.ravel_multi_index([np.asarray(i) for i in books], self.shape[:-1], mode="wrap")
        rows = torch.from_numpy(self._file.rows(self._name, flat))
        return rows.view(*np.shape(flat), -1)


class CompiledDecoder(nn.Module):
    """`layers.Decoder` over stored matrices; see `kernels.decode`.

    matrices  per layer q, k, v, attention out, gate, up, down
    norms     float32 [layers, 2, H]: before attention and feed-forward; head_norms [layers, 2, head_dim]: of queries
              and keys; last_norm [H]
    """

    def __init__(self, config: TransformerConfig, matrices: list[list[Matrix]], norms: np.ndarray,
                 head_norms: np.ndarray, last_norm: np.ndarray, team: Team):
        super().__init__()
        self.config, self.matrices, self.team = config, matrices, team
        self._numbers = np.array([[matrix.numbers for matrix in layer] for layer in matrices])
        self._norms = norms, head_norms, last_norm
        self._rope = Rope(config.head_dim, config.rope_theta, torch.device("cpu"))
        self._tables = (np.empty((0, config.head_dim // 2), np.float32),) * 2

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for layer in self.matrices for matrix in layer)

    def new_cache(self, capacity: int) -> KVCache:
        return KVCache.new(self.config, capacity, torch.float32, torch.device("cpu"))

    def forward(self, x: Tensor, cache: KVCache) -> Tensor:
        """x [H] or [n, H] float32 -> the same shape after the final norm; the cache grows by n positions."""
        rows = x.reshape(-1, self.config.hidden)
        return self.together(rows, [cache] * len(rows)).view(x.shape)

    def together(self, rows: Tensor, caches: list[KVCache]) -> Tensor:
        """See `layers.Decoder.together`; a row gives the same bits in any company."""
        c, n = self.config, len(rows)
        places = np.empty((n, 4), np.int64)
        more = Counter(map(id, caches))
        for cache in caches:
            cache.reserve(more.pop(id(cache), 0))
        for place, cache in zip(places, caches, strict=True):
            place[:] = cache.k.data_ptr(), cache.v.data_ptr(), cache.k.shape[2], cache.length
            cache.length += 1
        room = [np.empty(shape, np.float32) for shape in (
            (self.team.threads, n, c.hidden), (n, max((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden)),
            (n, c.heads * c.head_dim), (2, n, c.intermediate), (n, c.hidden))]
        x = rows.numpy().copy()  # the residual stream, overwritten
        self.team.run(kernels.decode, self._numbers, *self._norms, np.float32(c.rms_eps),
                      *self._angles(int(places[:, 3].max()) + 1), places, c.kv_heads, x, *room)
        return torch.from_numpy(room[-1])

    def _angles(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of at least `count` positions, each [positions, head_dim / 2]."""
        tables = self._tables  # both at once: another thread may grow them
        if count > len(tables[0]):
            # The halves of a head are the same but for the sign of the sine.
            known, half = self._rope.at(0, max(count, 2 * len(tables[0]))), self.config.head_dim // 2
            tables = self._tables = tuple(table[:, 0, half:].contiguous().numpy() for table in known)
        return tables
