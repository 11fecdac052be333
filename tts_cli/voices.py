"""A voice: the vector that conditions a talker, and the name a person calls it by."""

from dataclasses import dataclass, field

import numpy as np

from tts_cli.errors import UsageError


@dataclass(frozen=True)
class Voice:
    """One speaker identity for one model width.

    `xvector` is the raw (unnormalised) ECAPA embedding, float32 of shape [H], H = talker hidden size.
    Raises `UsageError` when it is not one finite row.
    """

    name: str
    xvector: np.ndarray = field(repr=False)

    def __post_init__(self):
        if self.xvector.ndim != 1 or not np.isfinite(self.xvector).all():
            raise UsageError(f"voice {self.name!r}: the x-vector must be one row of finite numbers, "
                             f"got shape {self.xvector.shape}")
