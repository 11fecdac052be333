"""One utterance's way from frame to frame, as the loop in `generate` walks it.

`launch` begins the next frame, `token` and `frame` tell what became of the oldest that was begun. Where the device
works behind the host's back (`static_steps`), the loop begins `lag` frames more than it has looked at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from tts_cli.qwen3tts.layers import KVCache
from tts_cli.qwen3tts.sampling import SamplingOptions, penalize_repeats, sample

if TYPE_CHECKING:
    from tts_cli.qwen3tts.weights import Models

MIN_FRAMES = 2  # EOS is not allowed before this many codebook-0 tokens


@dataclass(frozen=True)
class PromptRows:
    """A prompt as vectors: rows [P, H] and overlay [N, H] for the first N frames, then pad [H]; all float32.

    `prefix`: the talker's cache of the first rows, when it was read before.
    """

    rows: Tensor
    overlay: Tensor
    pad: Tensor
    prefix: KVCache | None = None

    def overlays(self) -> Iterator[Tensor]:
        """What is added to the embedding of each frame, [H]; endless."""
        return chain(self.overlay, repeat(self.pad))


@dataclass(frozen=True)
class LoopOptions:
    talker: SamplingOptions
    predictor: SamplingOptions
    repeat_penalty: float
    eos: int
    seed: int
    max_frames: int
    min_frames: int = MIN_FRAMES

    @property
    def sampling(self) -> tuple[SamplingOptions, SamplingOptions, float]:
        """What decides how codes are drawn, whoever speaks: talker, predictor, repeat penalty."""
        return self.talker, self.predictor, self.repeat_penalty


@dataclass(frozen=True)
class Frame:
    """codes int64 [16] and the talker hidden [H] they were predicted from, both on the model's device."""

    codes: Tensor
    hidden: Tensor


class Steps(Protocol):
    lag: int  # frames to begin before the first is looked at

    def launch(self) -> None:
        """Begin the next frame."""

    def token(self) -> int:
        """Codebook 0 of the oldest frame begun, -1 when its logits were not finite. Waits for it."""

    def frame(self) -> Frame:
        """The rest of that frame, which the next call of `token` leaves behind."""

    def close(self) -> None:
        """The utterance is over."""


class Chances:
    """What one utterance's draws take besides logits: uniform numbers of its own, and what may not be drawn when."""

    def __init__(self, models: "Models", options: LoopOptions, device: torch.device):
        vocabulary, (books, codes) = len(models.talker.head), models.predictor.embeddings.shape[:2]
        self._generator = torch.Generator(device).manual_seed(options.seed)
        self._draws, self._device = books + 1, device
        self._early = torch.arange(vocabulary, device=device) >= codes
        self._late = self._early.clone()
        self._late[options.eos] = False
        self._left = options.min_frames
        self.seen = torch.zeros_like(self._early)

    def next(self) -> tuple[Tensor, Tensor]:
        """For one frame: a uniform number per book, and the codebook-0 tokens that are forbidden [codec_vocab]."""
        self._left -= 1
        return (torch.rand(self._draws, generator=self._generator, device=self._device),
                self._late if self._left < 0 else self._early)


def draw_first(logits: Tensor, seen: Tensor, forbidden: Tensor, penalty: float, options: SamplingOptions,
               uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Codebook 0 (int64 [...]) from the talker's logits, and `seen` with it; masks are boolean [..., codec_vocab]."""
    logits = penalize_repeats(logits, seen, penalty).masked_fill(forbidden, -torch.inf)
    first = sample(logits, options, uniform)
    return first, seen.scatter(-1, first.clamp(min=0)[..., None], True)


class ModuleSteps:
    """The modules as they are, each called when it is its turn.

    What `read_frames` and `predict_frames` know of an utterance: its cache, the hidden [H] of its newest frame, whose
    codebook 0 is `first`, on the host, and all are `codes`, int64 [16]; None while there are none.
    """

    lag = 0

    @torch.inference_mode()
    def __init__(self, models: "Models", prompt: PromptRows, options: LoopOptions):
        self.models, self.options, self._overlays = models, options, prompt.overlays()
        self._chances = Chances(models, options, prompt.rows.device)
        # Room for a typical utterance at once; reserve() doubles it for the rare long one.
        self.cache = models.talker.decoder.new_cache(len(prompt.rows) + min(options.max_frames, 256))
        self.hidden = models.talker.prefill(prompt.rows, self.cache, prompt.prefix)
        self.first: int | None = None
        self.codes: Tensor | None = None

    def launch(self) -> None:
        read_frames([self])

    def token(self) -> int:
        return self.first

    def frame(self) -> Frame:
        predict_frames([self])
        return Frame(self.codes, self.hidden)

    def close(self) -> None:
        """It shares nothing."""

    def embedded(self) -> Tensor:
        """What the talker reads next, [H]."""
        return self.models.predictor.embed_frame(self.codes) + next(self._overlays)

    def draw(self, logits: Tensor) -> Tensor:
        """Codebook 0 (int64 scalar) of a new frame."""
        self.uniforms, forbidden = self._chances.next()
        first, self._chances.seen = draw_first(logits, self._chances.seen, forbidden, self.options.repeat_penalty,
                                               self.options.talker, self.uniforms[0])
        return first


@torch.inference_mode()
def read_frames(utterances: Sequence[ModuleSteps]) -> None:
    """The talker's step for each, in one pass: hidden and codebook 0 of their next frames."""
    talker = utterances[0].models.talker
    if begun := [one for one in utterances if one.codes is not None]:  # the others have just read their prompts
        rows = torch.stack([one.embedded() for one in begun])
        hidden = talker.together(rows, [one.cache for one in begun])
        for one, row in zip(begun, hidden, strict=True):
            one.hidden = row
    logits = talker.logits(torch.stack([one.hidden for one in utterances]))
    for one, row in zip(utterances, logits, strict=True):
        one.first = int(one.draw(row))


@torch.inference_mode()
def predict_frames(utterances: Sequence[ModuleSteps]) -> None:
    """The other codes of those frames."""
    predictor = utterances[0].models.predictor
    frames = predictor.predict(torch.stack([one.hidden for one in utterances]),
                               torch.tensor([one.first for one in utterances], device=utterances[0].hidden.device),
                               [one.options.predictor for one in utterances],
                               torch.stack([one.uniforms[1:] for one in utterances]))
    for one, codes in zip(utterances, frames, strict=True):
        one.codes = codes
