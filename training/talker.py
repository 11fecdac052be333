"""Train talker, code predictor and speaker encoder on the codec's codes.

    python -m training.talker CONFIG DATA WORK [--codec vocoder] [--minutes N] [--threads N] [--device cuda]

Teacher forcing over the product's own prompts, both text layouts mixed, with hints (`training.hints`) of what is being
said. Many of the fed-back codes are replaced: else the talker knows an utterance again by its residual codes and
recites, and the first wrong code of free running leads it astray.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import batched
from training.codec_model import Codec, load_codec
from training.corpus import Corpus
from training.hints import Hints, guide
from training.loop import command, fill, mixed, prepare, run, stage_arguments
from training.model import CODEC_IDS, Nano, Speech
from training.optim import optimizers
from training.talker_data import NOTHING, SPEAKER, Batch, TalkerData, all_codes
from training.text import read_merges

EOS = CODEC_IDS["codec_eos_token_id"]
_HELD_OUT = 32          # utterances in a report
_PLAIN = dict(dropout=0.0, replace=0.0, replace_frames=0.0, own_codes=0.0, frames_share=1, end_weight=1.0)


class TalkerStage:
    """Talker, code predictor, speaker encoder and the text's table, with hints for the sounds that `data` has."""

    name, average = "talker", 0

    def __init__(self, nano: Nano, data: TalkerData, device: str):
        self.data, self.device = data, device
        self.values = v = nano.values["talker_training"]
        self.steps, self.rate, self.patience = v["steps"], v["rate"], v["patience"]
        self.used = len(nano.fsq().books)
        speech = self.speech = Speech(nano).to(device)
        self.hints = Hints(speech.talker.head.shape[1], len(data.symbols), self.used, nano.values["codec"]["codes"])
        self.hints.to(device)
        self.modules = nn.ModuleDict(dict(talker=speech.talker, predictor=speech.predictor,
                                          speaker_encoder=speech.speaker_encoder,
                                          text_embedding=speech.text_embedding, hints=self.hints))
        self.optimizers = optimizers(self.modules.named_parameters(), betas=(0.9, 0.95), decay=v["decay"])

    def begin(self, work: Path, start: Path | None = None) -> None:
        """With `start` or with nothing: there is no stage before it. Raises what `take` does."""
        if start:
            self.take(start)

    def take(self, before: Path) -> bool:
        """Take the weights of a stage's folder or file; whether its hints came along: they do where they are of the
        same sizes, that is of as many sounds. Raises what `loop.fill` does."""
        found = fill({name: module for name, module in self.modules.items() if name != "hints"}, before)["hints"]
        own = self.hints.state_dict()
        same = {name: value.shape for name, value in found.items()} == {name: own[name].shape for name in own}
        if same:
            self.hints.load_state_dict(found)
        return same

    def step(self, number: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        batch = self.data.batch(rng, self.values["batch_frames"]).to(self.device)
        with mixed(self.device):
            losses = self.losses(batch, training=True)
        hints = sum(weight * losses[name] for name, weight in self.values["hints"].items())
        (losses["first"] + losses["rest"] + hints).backward()
        return {name: value.detach() for name, value in losses.items()}

    def losses(self, batch: Batch, training: bool = False) -> dict[str, Tensor]:
        """Cross entropies in nats, of codebook 0 and the end (`first`) and of a code of the other books (`rest`), and
        those of `Hints`; when training, all is made harder."""
        v = self.values if training else self.values | _PLAIN
        x = self.rows(batch, v["replace"], v["replace_frames"])
        hidden, watched = batched.decoder(self.speech.talker.decoder, x, v["dropout"], v["watch"])
        index = batch.starts[:, None] - 1 + torch.arange(batch.codes.shape[1] + 1, device=x.device)
        real = torch.arange(index.shape[1], device=x.device) <= batch.lengths[:, None]  # the end is the last target
        said = torch.arange(index.shape[1], device=x.device) < batch.lengths[:, None]
        target = torch.full(index.shape, EOS, device=x.device)
        target[:, :-1] = batch.codes[..., 0]
        target.scatter_(1, batch.lengths[:, None], EOS)
        at = hidden.gather(1, index.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[-1]))
        logits = F.linear(at, self.speech.talker.head).float()
        weights = torch.ones(logits.shape[-1], device=x.device)
        weights[EOS] = v["end_weight"]
        first = F.cross_entropy(logits[real], target[real], weights)
        frames, codes, logits = at[said], batch.codes[said[:, :-1]][:, :self.used], logits[said]
        hints = self.hints.of_frames(frames, batch.sounds[said[:, :-1]], codes)
        hints |= self.hints.of_text(watched, batch) | guide(watched, batch, index, said)
        if v["frames_share"] < 1:
            chosen = torch.randperm(len(frames), device=x.device)[:max(1, int(v["frames_share"] * len(frames)))]
            frames, codes, logits = frames[chosen], codes[chosen], logits[chosen]
        rest = self._rest(frames, codes, self._drifted(frames, codes, logits, v["own_codes"]))
        return {"first": first, "rest": rest} | hints

    def rows(self, batch: Batch, replace: float = 0.0, replace_frames: float = 0.0) -> Tensor:
        """The talker's input [B, n, H], as `Qwen3TTSEngine.embed` and the loop make it.

        replace         share of the fed-back codes that become those of other frames
        replace_frames  the most of an utterance's frames that become other frames as a whole; each has its own share
        """
        predictor = self.speech.predictor
        x = self.speech.text_embedding(batch.text)
        tags = predictor.first_embedding[batch.codec.clamp(min=0)]
        x = x + torch.where((batch.codec > NOTHING)[..., None], tags, 0)
        if len(batch.clips):
            vectors = torch.func.vmap(self.speech.speaker_encoder)(batch.clips)
            x = x.index_put(torch.where(batch.codec == SPEAKER), vectors, accumulate=True)
        codes = self._disturbed(batch.codes, replace, replace_frames)
        frames = predictor.first_embedding[codes[..., 0]]
        for book in range(self.used - 1):
            frames = frames + predictor.embeddings[book][codes[..., book + 1]]
        frames = F.pad(frames, (0, 0, 0, x.shape[1]))  # row `start + t` is frame t
        shifted = torch.arange(x.shape[1], device=x.device) - batch.starts[:, None]
        spoken = (shifted >= 0) & (shifted < batch.lengths[:, None])
        moved = frames.gather(1, shifted.clamp(min=0)[..., None].expand(-1, -1, x.shape[-1]))
        return x + torch.where(spoken[..., None], moved, 0)

    def _disturbed(self, codes: Tensor, share: float, frames: float) -> Tensor:
        flat = codes.flatten(0, 1)
        others = flat[torch.randperm(len(flat), device=codes.device)].view_as(codes)
        one = torch.rand(codes.shape, device=codes.device) < share
        shares = frames * torch.rand(len(codes), 1, 1, device=codes.device)
        return torch.where(one | (torch.rand_like(shares.expand(codes.shape[:2] + (1,))) < shares), others, codes)

    def _rest(self, hidden: Tensor, codes: Tensor, given: Tensor) -> Tensor:
        """Mean cross entropy of books 1 .. of frames: hidden [N, H], codes [N, used], told after those `given`."""
        return F.cross_entropy(self._rest_logits(hidden, given).flatten(0, 1), codes[:, 1:].flatten())

    def _rest_logits(self, hidden: Tensor, given: Tensor) -> Tensor:
        """float32 [N, used - 1, codes] of books 1 .., each after the codes before it, `given` [N, used]."""
        p = self.speech.predictor
        inputs = torch.stack((hidden, p.first_embedding[given[:, 0]],
                              *(p.embeddings[b][given[:, b + 1]] for b in range(self.used - 2))), 1)
        x, _ = batched.decoder(p.decoder, p.project(inputs))
        return torch.einsum("nbh,bch->nbc", x[:, 1:], p.heads[:self.used - 1].to(x.dtype)).float()

    @torch.no_grad()
    def _drifted(self, hidden: Tensor, codes: Tensor, first: Tensor, most: float) -> Tensor:
        """The codes [N, used] of frames, where up to `most` of a frame's are those the predictor itself would say.

        So it sees in training what it will see when it speaks: of its codes some are off, and a wrong one must not
        lead all others. first: the talker's logits for codebook 0.
        """
        if not most:
            return codes
        logits = torch.cat((first[:, None, :self.speech.predictor.heads.shape[1]], self._rest_logits(hidden, codes)), 1)
        own = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1).view(codes.shape)
        share = most * torch.rand(len(codes), 1, device=codes.device)
        return torch.where(torch.rand(codes.shape, device=codes.device) < share, own, codes)

    def report(self) -> Mapping[str, float]:
        """Losses on held-out texts, each in both layouts; `loss`, what early stopping looks at, is of a whole frame."""
        chosen = self.data.held_out[:_HELD_OUT]
        if not chosen:
            return {}
        full, streaming = (self.losses(self.data.collate(chosen, np.random.default_rng(0), layout).to(self.device))
                           for layout in ("full", "streaming"))
        losses = {name: float(full[name] + streaming[name]) / 2 for name in full}
        return losses | {"first_streaming": float(streaming["first"]),
                         "loss": losses["first"] + (self.used - 1) * losses["rest"]}


def new_stage(config: Path, folder: Path, work: Path, codec: str, device: str = "cpu") -> tuple[TalkerStage, Codec]:
    """An untrained talker for the data in `folder`, in the codes of the codec `work / codec`, which comes second."""
    nano, corpus = Nano.read(config), Corpus(folder)
    values = nano.values["talker_training"]
    loaded = load_codec(nano, work / codec)
    data = TalkerData(nano, corpus, all_codes(corpus, loaded, work / "codes.npz"), read_merges(folder / "merges.txt"),
                      full=values["full"], silent=values["silent"])
    return TalkerStage(nano, data, device), loaded


@command
def main(arguments: list[str] | None = None) -> None:
    parser = stage_arguments("training.talker", __doc__.splitlines()[0])
    parser.add_argument("--codec", default="vocoder", help="the stage whose codec is used; all have the same codes")
    args = parser.parse_args(arguments)
    prepare(args.threads)
    torch.manual_seed(0)
    stage, _ = new_stage(args.config, args.data, args.work, args.codec, args.device)
    run(stage, args)


if __name__ == "__main__":
    main()
