"""Train the codec, one stage after the other.

    python -m training.codec latents CONFIG DATA WORK [--minutes N] [--steps N] [--threads N] [--device cuda]
    python -m training.codec prevocoder …       # beside it, on another core; may be left out
    python -m training.codec vocoder …
    python -m training.codec adversarial …

latents      encoder, quantiser and the decoder's transformer half learn to carry mel and pitch
prevocoder   the convolutional half learns to speak from what is measured, with noise, as long as there are no latents
vocoder      it learns to speak from the latents; the rest stays (together they destroyed the latents)
adversarial  the convolutional half once more, against a small discriminator

With `--start FILE` of `training.slim` the later stages go on from that codec instead of the stages before them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import batched
from training.codec_model import Codec, feature_rows
from training.corpus import Corpus, Crops
from training.discriminator import Discriminator, judge_loss, maker_losses
from training.features import COLUMNS, HOP, pack
from training.loop import command, fill, mixed, prepare, run, stage_arguments, trained
from training.losses import feature_figures, feature_losses, sound_losses, start_loss
from training.model import Nano
from training.optim import optimizers

_LATENT = 2 * HOP               # samples per column of the features
_SKIP = 8                       # columns at the start of a stretch, whose past the decoder has not seen
_HELD_OUT = 20                  # utterances in a stage's report
_QUIET_START = 5.0              # weight of `start_loss`: its gradient is about as large as the others' together


def _on(crops: Crops, device: str) -> Crops:
    return Crops(crops.samples.to(device), crops.rows.to(device), crops.first.to(device))


class Latents:
    """Features through the quantiser and back. Some items keep only their first books, so that those say the most."""

    name, average = "latents", 0

    def __init__(self, nano: Nano, corpus: Corpus, device: str):
        self.codec, self.corpus, self.device = Codec(nano, device), corpus, device
        values = nano.values["latents"]
        self.steps, self.rate, self.batch, self.frames = (values[k] for k in ("steps", "rate", "batch", "frames"))
        self.drop, self.least = values["book_dropout"], values["least_books"]
        self.modules = nn.ModuleDict(dict(encoder=self.codec.encoder, code2wav=self.codec.code2wav))
        self.optimizers = optimizers([*self.codec.encoder.named_parameters(), *self.codec.front()])
        self.optimizers[0].param_groups[0]["scale"] = 0.5

    def begin(self, work: Path, start: Path | None = None) -> None:
        """With nothing: it is the first."""

    def step(self, number: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        crops = _on(self.corpus.crops(rng, self.batch, self.frames), self.device)
        fsq = self.codec.fsq
        books = np.where(rng.random(self.batch) < self.drop,
                         rng.integers(self.least, len(fsq.books) + 1, self.batch), len(fsq.books))
        with mixed(self.device):
            z = self.codec.encoder(crops.rows)
            values = fsq.keep(fsq.quantize(z), torch.from_numpy(books).to(self.device))
            features = self.codec.features(values).float()
        weight = torch.ones_like(crops.rows[:, :1])
        weight[~crops.first, :, :COLUMNS] = 0
        losses = feature_losses(feature_rows(features), crops.rows, weight)
        free = features[:, 2 * crops.rows.shape[1]:]
        loss = (losses["mel"] + 0.4 * losses["edges"] + 0.3 * losses["pitch"] + 0.2 * losses["voicing"]
                + 0.05 * free.square().sum() / features.numel())
        loss.backward()
        return {name: value.detach() for name, value in losses.items()}

    def report(self) -> Mapping[str, float]:
        found, true = [], []
        for u in self.corpus.held_out[:_HELD_OUT]:
            rows = self.corpus.rows(u).to(self.device)
            found.append(feature_rows(self.codec.features(self.codec.quantize(rows))))
            true.append(rows)
        return feature_figures(torch.cat(found, -1), torch.cat(true, -1)) if true else {}


class Vocoder:
    """Sound from the features of the trained latents."""

    name, average = "vocoder", 300

    def __init__(self, nano: Nano, corpus: Corpus, device: str):
        self.codec, self.corpus, self.device = Codec(nano, device), corpus, device
        values = nano.values[self.name]
        self.steps, self.rate, self.batch, self.columns = (values[k] for k in ("steps", "rate", "batch", "columns"))
        self.codec.encoder.requires_grad_(False)
        for _, p in self.codec.front():
            p.requires_grad_(False)
        self.modules = nn.ModuleDict(dict(encoder=self.codec.encoder, code2wav=self.codec.code2wav))
        self.optimizers = optimizers(self.codec.back(), betas=(0.8, 0.99))
        compiled = values.get("compile", False)
        self._speak = torch.compile(self._waveform) if compiled else self._waveform

    def begin(self, work: Path, start: Path | None = None) -> None:
        """See `loop.Stage`. Raises what `loop.fill` does."""
        if start:
            self._take(start)
        else:
            self._take_before(work)

    def _take(self, before: Path) -> None:
        fill(dict(encoder=self.codec.encoder, code2wav=self.codec.code2wav), before)

    def _take_before(self, work: Path) -> None:
        self._take(work / "latents")
        if (work / Prevocoder.name).exists():
            before = trained(work / Prevocoder.name)["code2wav"]
            for name, p in self.codec.back():
                p.data.copy_(before[name])

    def _features(self, rows: Tensor) -> Tensor:
        """What the sound is made of, [B, latent, n]."""
        with mixed(self.device):
            return self.codec.features(self.codec.quantize(rows)).float()

    def _waveform(self, features: Tensor) -> Tensor:
        return batched.waveform(self.codec.code2wav, features)

    def step(self, number: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        made, real, first = self.speak(rng)
        losses = self.compare(made, real, first)
        (losses["stft"] + losses["mel"] + _QUIET_START * losses["start"]).backward()
        return {name: value.detach() for name, value in losses.items()}

    @staticmethod
    def compare(made: Tensor, real: Tensor, first: Tensor) -> dict[str, Tensor]:
        """`sound_losses` of sound [B, n] against the real one, and `start_loss` of the items `first` [B] as `start`."""
        start = start_loss(made[first], real[first]) if first.any() else made.new_zeros(())
        return sound_losses(made, real) | {"start": start}

    def speak(self, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Sound made of random stretches and the real one, [B, n] each, and which are starts of utterances, [B].

        Starts count from the first sample on; of all others the first columns are silenced, as their past is
        missing."""
        frames = self.columns // 4 + 4
        crops = _on(self.corpus.crops(rng, self.batch, frames), self.device)
        with torch.no_grad():
            features = self._features(crops.rows)
        starts = np.where(crops.first.cpu(), 0, rng.integers(4, 4 * frames - self.columns + 1, self.batch))
        features = torch.stack([f[:, s:s + self.columns] for f, s in zip(features, starts, strict=True)])
        real = torch.stack([x[s * _LATENT:(s + self.columns) * _LATENT]
                            for x, s in zip(crops.samples, starts, strict=True)])
        with mixed(self.device):
            made = self._speak(features.contiguous()).float()
        audible = torch.ones_like(real)
        audible[~crops.first, :_SKIP * _LATENT] = 0
        return made * audible, real * audible, crops.first

    def report(self) -> Mapping[str, float]:
        return {}


class Prevocoder(Vocoder):
    """The vocoder on measured features, blurred by some noise as those of the codec will be."""

    name = "prevocoder"

    def _take_before(self, work: Path) -> None:
        """There is nothing before it."""

    def _features(self, rows: Tensor) -> Tensor:
        packed = pack(rows)
        packed = packed + 0.25 * torch.rand_like(packed[:, :1, :1]) * torch.randn_like(packed)
        return F.pad(packed, (0, 0, 0, self.codec.code2wav.config.latent - packed.shape[1]))


class Adversarial(Vocoder):
    """The vocoder goes on with a discriminator beside it."""

    name = "adversarial"

    def __init__(self, nano: Nano, corpus: Corpus, device: str):
        super().__init__(nano, corpus, device)
        self.judges = Discriminator().to(device)
        self.modules["judges"] = self.judges
        self.optimizers += optimizers(self.judges.named_parameters(), muon=False, betas=(0.8, 0.99))
        self.optimizers[-1].param_groups[0]["scale"] = 0.5
        self.warmup = nano.values[self.name]["warmup"]  # steps in which only the judges learn to be heard

    def _take_before(self, work: Path) -> None:
        self._take(work / "vocoder")

    def step(self, number: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        made, real, first = self.speak(rng)
        judged = judge_loss(self.judges(real), self.judges(made.detach()))
        judged.backward()
        losses = self.compare(made, real, first)
        loss = losses["stft"] + losses["mel"] + _QUIET_START * losses["start"]
        if number >= self.warmup:
            self.judges.requires_grad_(False)
            losses |= maker_losses(self.judges(real), self.judges(made))
            self.judges.requires_grad_(True)
            loss = loss + 0.1 * losses["fool"] + 0.5 * losses["match"]
        loss.backward()
        return {name: value.detach() for name, value in (losses | {"judges": judged}).items()}


STAGES = {"latents": Latents, "prevocoder": Prevocoder, "vocoder": Vocoder, "adversarial": Adversarial}


@command
def main(arguments: list[str] | None = None) -> None:
    parser = stage_arguments("training.codec", __doc__.splitlines()[0], STAGES)
    args = parser.parse_args(arguments)
    if args.start and args.stage == "latents":
        parser.error("latents, the first stage, begins with nothing")
    prepare(args.threads)
    torch.manual_seed(0)
    run(STAGES[args.stage](Nano.read(args.config), Corpus(args.data), args.device), args)


if __name__ == "__main__":
    main()
