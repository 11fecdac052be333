"""Utterances as the talker learns them: the product's own prompt in front, then its frames."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.codec_model import Codec
from training.corpus import Corpus, Utterance
from training.features import FRAME, RATE
from training.model import Nano
from training.text import Reader
from tts_cli.audio.mel import HOP, MELS, log_mel
from tts_cli.qwen3tts.prompt import SpecialTokens, build_prompt

NOTHING, SPEAKER = -1, -2       # in place of a codec row
UNKNOWN = -100                  # in place of a sound; what torch's cross entropy leaves out
PARTS = 4                       # of a frame, of which the sound is told: 20 ms
SOUNDS_AROUND = (-1, 2)         # frames, from the one before a frame to the second behind it
SOUNDS = PARTS * (SOUNDS_AROUND[1] - SOUNDS_AROUND[0] + 1)
LETTER_SOUNDS = 2 * PARTS       # around the time of a token
LATER = 2                       # rows: how a token sounds depends on what follows, and a row sees only what was before
CLIP = 160                      # columns of 10.7 ms that the speaker encoder hears
_LANGUAGE = "english"


@dataclass(frozen=True)
class Batch:
    """Rows are the prompt and then the frames that were said, padded at the end to n.

    text     int64 [B, n], ids of the text side; codec int64 [B, n] of the prompt's codec side, NOTHING, or SPEAKER
    codes    int64 [B, F, 16], the frames; starts [B]: the row of the first of them; lengths [B] in frames
    clips    log-mel [S, 128, CLIP] of other speech of the same voice, for each of the S items that have a speaker
    body     bool [B, n], rows that bring a token of the text to be said
    keys     bool [B, n], rows LATER than those: what is to be known of a token is known there
    centres  float32 [B, n], when that token is said, in frames; 0 elsewhere
    letters  int64 [B, n, LETTER_SOUNDS], which of `TalkerData.symbols` sound around that time; UNKNOWN elsewhere
    sounds   int64 [B, F, SOUNDS], which sound in and around each frame, or UNKNOWN
    """

    text: Tensor
    codec: Tensor
    codes: Tensor
    starts: Tensor
    lengths: Tensor
    clips: Tensor
    body: Tensor
    keys: Tensor
    centres: Tensor
    letters: Tensor
    sounds: Tensor

    def to(self, device: str) -> "Batch":
        return Batch(**{name: value.to(device) for name, value in vars(self).items()})


class TalkerData:
    """full: share of the layout "full" (all text in front) against "streaming"; silent: share without a speaker."""

    def __init__(self, nano: Nano, corpus: Corpus, codes: dict[str, np.ndarray], merges: Sequence[str],
                 full: float = 0.5, silent: float = 0.1, longest: int = 120):
        self.corpus, self.codes, self.full, self.silent = corpus, codes, full, silent
        self.reader = Reader(nano, merges)
        self.special = SpecialTokens.find(self.reader, nano.text_vocab)
        self.train = sorted((u for u in corpus.train if u.frames <= longest), key=lambda u: u.frames)
        self.held_out = [u for u in corpus.held_out if u.frames <= longest]
        self._ends = np.cumsum([u.frames for u in self.train])
        self.symbols = ["", *sorted({symbol for u in corpus.train for symbol, _ in u.sounds} - {""})]
        self._number = {symbol: i for i, symbol in enumerate(self.symbols)}
        self._voices: dict[str, list[Utterance]] = {}
        for u in corpus.train:
            if u.frames * FRAME >= CLIP * HOP:
                self._voices.setdefault(u.voice, []).append(u)

    def batch(self, rng: np.random.Generator, frames: int) -> Batch:
        """Utterances of similar length, so that little is padded, as many as have `frames` together.

        Each is chosen as often as any other: of long ones, few go into a batch, there are more batches.
        """
        longest = int(np.searchsorted(self._ends, rng.integers(self._ends[-1]), side="right"))
        count = max(1, frames // self.train[longest].frames)
        first = max(0, longest + 1 - 4 * count)
        chosen = rng.integers(first, longest + 1, count)
        layout = "full" if rng.random() < self.full else "streaming"
        return self.collate([self.train[i] for i in chosen], rng, layout)

    def collate(self, utterances: Sequence[Utterance], rng: np.random.Generator, layout: str) -> Batch:
        """All in the same layout: mixed ones are of different lengths, and a quarter would be padding."""
        items = [self._item(u, rng, layout) for u in utterances]
        starts = torch.tensor([len(codec) for _, codec, _, _ in items])
        lengths = torch.tensor([u.frames for u in utterances])
        rows, frames = int((starts + lengths).max()), int(lengths.max())
        text = torch.full((len(items), rows), self.special.text_pad)
        codec, centres = torch.full_like(text, NOTHING), torch.zeros(text.shape)
        inside, keys = torch.zeros(2, *text.shape, dtype=torch.bool)
        letters = torch.full((*text.shape, LETTER_SOUNDS), UNKNOWN)
        codes = torch.zeros(len(items), frames, 16, dtype=torch.int64)
        sounds = torch.full((len(items), frames, SOUNDS), UNKNOWN)
        for i, (u, (text_ids, codec_ids, body, times)) in enumerate(zip(utterances, items, strict=True)):
            text[i, :len(text_ids)] = torch.tensor(text_ids)
            codec[i, :len(codec_ids)] = torch.tensor(codec_ids)
            codes[i, :u.frames] = torch.from_numpy(self.codes[key(u)].astype(np.int64))
            inside[i, body] = True
            at = [row + LATER for row in body if row + LATER < starts[i] + u.frames]
            keys[i, at] = True
            centres[i, at] = torch.tensor(times[:len(at)])
            letters[i, at] = self._sounds(u, np.array(times[:len(at)]), -1, LETTER_SOUNDS)
            sounds[i, :u.frames] = self._sounds(u, np.arange(u.frames), SOUNDS_AROUND[0], SOUNDS)
        clips = [self._clip(u.voice, rng) for u, item in zip(utterances, items, strict=True) if SPEAKER in item[1]]
        clips = torch.stack(clips) if clips else torch.zeros(0, MELS, CLIP)
        return Batch(text, codec, codes, starts, lengths, clips, inside, keys, centres, letters, sounds)

    def _sounds(self, u: Utterance, times: np.ndarray, first: float, count: int) -> Tensor:
        """The sounds in `count` steps from each time + `first` on, all in frames; "" before the first and behind the
        last."""
        symbols, ends = zip(*u.sounds, strict=True)
        steps = first + (np.arange(count) + 0.5) / PARTS
        at = np.searchsorted(ends, (times[:, None] + steps) * FRAME / RATE, side="right")
        numbers = np.array([self._number.get(symbol, UNKNOWN) for symbol in (*symbols, "")])
        return torch.from_numpy(numbers[at])

    def _item(self, u: Utterance, rng: np.random.Generator, layout: str
              ) -> tuple[list[int], list[int], list[int], list[float]]:
        """Text ids of all rows, codec ids of the prompt, the rows of the body's tokens and their times in frames."""
        ids, letters = self.reader.read(u.text)
        speaker = None if rng.random() < self.silent else np.zeros(0, np.float32)
        prompt = build_prompt(self.special, ids, language=_LANGUAGE if rng.random() < 0.5 else "auto",
                              text_mode=layout, speaker=speaker)
        codec = [NOTHING if item is None else SPEAKER if isinstance(item, np.ndarray) else item
                 for item in prompt.codec]
        text = [*prompt.text, *prompt.overlay][:len(codec) + u.frames]
        first = len(prompt) - 1 if prompt.overlay else len(prompt) - 2 - len(ids)
        at, seconds = zip(*u.marks, strict=True)
        times = np.interp(letters, at, seconds) * RATE / FRAME
        body = [first + i for i in range(len(ids)) if first + i < len(text)]
        return text, codec, body, times[:len(body)].tolist()

    def _clip(self, voice: str, rng: np.random.Generator) -> Tensor:
        u = self._voices[voice][int(rng.integers(len(self._voices[voice])))]
        start = int(rng.integers(u.frames * FRAME - CLIP * HOP + 1))
        return log_mel(torch.from_numpy(self.corpus.samples(u)[start:start + CLIP * HOP]))


def key(u: Utterance) -> str:
    return f"{u.voice}/{u.number}.{u.piece}"


def all_codes(corpus: Corpus, codec: Codec, path: Path) -> dict[str, np.ndarray]:
    """The codes int16 [frames, 16] of every utterance by `key`; kept at `path`, for the next time with this codec."""
    wanted, digest = [*corpus.train, *corpus.held_out], codec.digest()
    if path.exists():
        with np.load(path) as stored:
            found = dict(zip(stored["names"].tolist(), np.split(stored["codes"], stored["ends"][:-1]), strict=True))
            made_by = str(stored["codec"]) if "codec" in stored else ""
        if made_by == digest and all(len(found.get(key(u), ())) == u.frames for u in wanted):
            return found
    path.parent.mkdir(parents=True, exist_ok=True)  # before the long work
    found = {key(u): codec.encode(corpus.rows(u)).short().numpy() for u in wanted}
    part = path.with_suffix(".part.npz")
    np.savez(part, codec=digest, names=np.array(list(found)), codes=np.concatenate(list(found.values())),
             ends=np.cumsum([len(c) for c in found.values()]))
    os.replace(part, path)
    return found
