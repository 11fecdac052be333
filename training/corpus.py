"""The spoken data as training reads it: mapped, cut into crops, held-out texts apart."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.features import COLUMNS, FRAME, HOP, MARGIN, log_mel, pitch_rows
from training.texts import is_held_out


@dataclass(frozen=True)
class Utterance:
    """A text, or piece `piece` of one, said by one voice: `frames` of 80 ms in shard `shard` from frame `start` on."""

    voice: str
    number: int
    piece: int
    text: str
    shard: int
    start: int
    frames: int
    marks: tuple[tuple[int, float], ...]
    sounds: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Crops:
    """samples [B, 1920 n], rows [B, 82, 8 n] (`features.ROWS`), first [B]: true where an utterance begins."""

    samples: Tensor
    rows: Tensor
    first: Tensor


class Corpus:
    """All shards below a folder. Raises `FileNotFoundError` when there are none, `ValueError` for those of an older
    version."""

    def __init__(self, folder: Path):
        self.train: list[Utterance] = []
        self.held_out: list[Utterance] = []
        self._speech, self._pitch = [], []
        for index in sorted(folder.glob("*/*.jsonl")):
            lines = [json.loads(line) for line in index.read_text(encoding="utf-8").splitlines()]
            if not lines:
                continue
            if "piece" not in lines[0]:
                raise ValueError(f"{index.parent}: made by an older version; remove it and make it again")
            self._speech.append(np.memmap(index.with_suffix(".i16"), "<i2", "r"))
            self._pitch.append(np.memmap(index.with_suffix(".f32"), "<f4", "r"))
            for line in lines:
                marks, sounds = (tuple((what, seconds) for what, seconds in line[name]) for name in ("marks", "sounds"))
                u = Utterance(index.parent.name, line["number"], line["piece"], line["text"],
                              len(self._speech) - 1, line["start"], line["frames"], marks, sounds)
                (self.held_out if is_held_out(u.number) else self.train).append(u)
        if not self.train:
            raise FileNotFoundError(f"{folder}: no speech here; make it with python -m training.data")
        self.held_out.sort(key=lambda u: u.number)
        self._ends = np.cumsum([u.frames for u in self.train])

    def samples(self, u: Utterance, first: int = 0, frames: int | None = None) -> np.ndarray:
        """Samples of an utterance, or of some of its frames, float32."""
        start = u.start + first
        stop = start + (u.frames - first if frames is None else frames)
        return self._speech[u.shard][start * FRAME:stop * FRAME].astype(np.float32) / 32768

    def pitch(self, u: Utterance) -> np.ndarray:
        """Of a whole utterance in Hz, float32 [8 frames], negative where unvoiced; see `features.pitch`."""
        return np.array(self._pitch[u.shard][u.start * COLUMNS:(u.start + u.frames) * COLUMNS])

    def rows(self, u: Utterance) -> Tensor:
        """The features of a whole utterance, [1, 82, 8 frames]."""
        samples, hz = torch.from_numpy(self.samples(u)), torch.from_numpy(self.pitch(u))
        return torch.cat((log_mel(samples[None]), pitch_rows(hz[None])), 1)

    def crops(self, rng: np.random.Generator, count: int, frames: int, starts: float = 0.15,
              gain_db: float = 3) -> Crops:
        """Random stretches of `frames`, longer utterances more often; `starts` of them where the utterance begins.

        Utterances shorter than that are followed by silence. The level varies by up to `gain_db` either way.
        """
        samples, hz, first = [], [], []
        side = MARGIN * HOP
        for _ in range(count):
            u = self.train[int(np.searchsorted(self._ends, rng.integers(self._ends[-1]), side="right"))]
            start = 0 if rng.random() < starts else int(rng.integers(max(1, u.frames - frames + 1)))
            gain = 10 ** (rng.uniform(-gain_db, gain_db) / 20) / 32768
            whole = self._speech[u.shard][u.start * FRAME:(u.start + u.frames) * FRAME]
            low, high = start * FRAME - side, (start + frames) * FRAME + side
            cut = whole[max(low, 0):high].astype(np.float32) * gain
            samples.append(np.pad(cut, (max(-low, 0), max(high - len(whole), 0))))
            pitch = self.pitch(u)[start * COLUMNS:(start + frames) * COLUMNS]
            hz.append(np.pad(pitch, (0, frames * COLUMNS - len(pitch)), constant_values=-200))
            first.append(start == 0)
        wide = torch.from_numpy(np.stack(samples))
        mel = log_mel(wide)[..., MARGIN:-MARGIN]
        rows = torch.cat((mel, pitch_rows(torch.from_numpy(np.stack(hz)))), 1)
        return Crops(wide[:, side:-side], rows, torch.tensor(first))
