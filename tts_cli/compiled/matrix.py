"""A weight matrix as its file stores it."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from tts_cli.compiled import kernels
from tts_cli.compiled.formats import FORMATS
from tts_cli.compiled.team import Team, team_of


class Matrix:
    """Rows of stored weights [rows, columns] and the team that multiplies with them.

    data   uint8 [rows, bytes per row], contiguous; a view of the file's memory map, or a copy
    shape  as the tensor has it; leading dimensions count as one for products

    Raises `ValueError` for a type without a kernel, or columns that are no multiple of what its kernel reads at once.
    """

    def __init__(self, data: np.ndarray, kind: Kind, shape: tuple[int, ...], team: Team):
        if not usable(kind, shape):
            raise ValueError(f"no kernel for {kind.name} {list(shape)}")
        self.data, self.kind, self.shape, self.team = data, kind, shape, team
        self._books: list[Matrix] | None = None
        function = kernels.rows_times(int(kind)).address
        self.numbers = np.array([function, data.ctypes.data, data.strides[0], len(data), shape[-1]], np.int64)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> "Iterator[Matrix]":
        """The matrices of a stack [books, rows, columns]."""
        if self._books is None:
            rows = math.prod(self.shape[1:-1])
            self._books = [Matrix(self.data[start:start + rows], self.kind, self.shape[1:], self.team)
                           for start in range(0, len(self.data), rows)]
        return iter(self._books)

    def times(self, x: Tensor) -> Tensor:
        """x [columns] or [n, columns], float32 -> x @ matrix.T, [rows] or [n, rows]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = np.empty((len(rows), len(self.data)), np.float32)
        self.team.run(kernels.product, self.numbers, rows.numpy(), y)
        return torch.from_numpy(y).view(*x.shape[:-1], -1)


class MatrixStack:
    """Matrices of equal columns as one, the rows of the first on top."""

    def __init__(self, matrices: list[Matrix]):
        self.matrices = matrices

    def times(self, x: Tensor) -> Tensor:
        """As `Matrix.times`."""
        parts = [matrix.times(x) for matrix in self.matrices]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def times_float32(x: Tensor, w: Tensor) -> Tensor:
    """x [n, columns] @ w.T for a float32 weight [rows, columns] of torch, to [n, rows]; see `layers.dense`."""
    data = w.detach().numpy().view(np.uint8)
    return Matrix(data, Kind.F32, tuple(w.shape), team_of(torch.get_num_threads())).times(x)


def usable(kind: Kind, shape: tuple[int, ...]) -> bool:
    """Whether rows of that type and length can be multiplied as they are."""
    return kind in FORMATS and shape[-1] % FORMATS[kind].columns == 0
