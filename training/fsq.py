"""Finite scalar quantisation (Mentzer et al. 2023, arXiv:2309.15505), and its latent as ordinary codebook tables.

Each dimension of the latent is rounded to one of a few levels. A book is a group of dimensions and has a table in
which only its own dimensions are not zero, so that the sum of one row of each book is the latent: exactly what the
decoder of a residual quantiser adds up.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_EDGE = 1e-3  # how far tanh reaches beyond the outermost level, so that this can be reached at all


class FSQ:
    """books: the numbers of levels of each book's dimensions, e.g. [[8, 5], [5, 5]] for books of 40 and 25 codes.

    Raises `ValueError` for fewer than 3 levels, between which there would be hardly a gradient.
    """

    def __init__(self, books: Sequence[Sequence[int]], device: torch.device | str = "cpu"):
        self.books = [tuple(levels) for levels in books]
        if min(min(levels) for levels in self.books) < 3:
            raise ValueError(f"books {books}: each dimension needs 3 levels or more")
        self.levels = torch.tensor([n for levels in self.books for n in levels], dtype=torch.float32, device=device)
        self.book_of = torch.repeat_interleave(
            torch.arange(len(self.books), device=device),
            torch.tensor([len(levels) for levels in self.books], device=device))
        # The place value of a dimension in its book's code; the first is the lowest digit.
        self._places = torch.tensor([prod(levels[:i]) for levels in self.books for i in range(len(levels))],
                                    device=device)
        self._half = self.levels.div(2, rounding_mode="floor")

    @property
    def dims(self) -> int:
        return len(self.levels)

    @property
    def codes(self) -> int:
        """The most codes any book has."""
        return max(prod(levels) for levels in self.books)

    def bound(self, z: Tensor) -> Tensor:
        """Any z [..., dims] -> what `quantize` rounds, within [-1, 1]; an even count of levels has one more below 0."""
        reach = (self.levels - 1) * (1 + _EDGE) / 2
        offset = (1 - self.levels % 2) / 2
        return ((z.float() + (offset / reach).atanh()).tanh() * reach - offset) / self._half

    def quantize(self, z: Tensor) -> Tensor:
        """z [..., dims] -> values [..., dims] in [-1, 1], each a level; the gradient passes unrounded."""
        bounded = self.bound(z)
        return bounded + ((bounded * self._half).round() / self._half - bounded).detach()

    def keep(self, values: Tensor, books: Tensor) -> Tensor:
        """Values [B, T, dims] with those of all but the first `books` [B] books set to 0."""
        return values * (self.book_of < books[:, None])[:, None]

    def encode(self, values: Tensor) -> Tensor:
        """Values that `quantize` gave [..., dims] -> codes int64 [..., books]."""
        digits = (values * self._half + self._half).round().long() * self._places
        return digits.new_zeros(*digits.shape[:-1], len(self.books)).index_add_(-1, self.book_of, digits)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [..., books] -> values [..., dims]."""
        digits = codes[..., self.book_of] // self._places % self.levels.long()
        return digits / self._half - 1

    def tables(self, rows: int, width: int) -> Tensor:
        """Codebooks [books, rows, width] of which one row each adds up to the values, zeros behind; exact in float16.

        Rows beyond a book's last code are zeros. Raises `ValueError` where `rows` or `width` are too few.
        """
        if rows < self.codes or width < self.dims:
            raise ValueError(f"{rows} rows of {width} are too few for {self.codes} codes of {self.dims} dimensions")
        tables = self.levels.new_zeros(len(self.books), rows, width)
        for book, levels in enumerate(self.books):
            own = self.book_of == book
            codes = torch.zeros(prod(levels), len(self.books), dtype=torch.int64, device=tables.device)
            codes[:, book] = torch.arange(len(codes), device=tables.device)
            tables[book, :len(codes), :self.dims] = self.decode(codes) * own
        return tables
