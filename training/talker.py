"""Train talker, code predictor and speaker encoder on the codec's codes.

    python -m training.talker CONFIG DATA WORK [--codec vocoder] [--minutes N] [--threads N] [--device cuda]

Teacher forcing over the product's own prompts, both text layouts mixed. One attention head is guided to the text that
is being said, and many of the fed-back codes are replaced: else the talker knows an utterance again by its residual
codes and recites, and the first wrong code of free running leads it astray.
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
from training.loop import mixed, prepare, run, stage_arguments, trained
from training.model import CODEC_IDS, Nano, Speech
from training.optim import optimizers
from training.talker_data import NOTHING, SOUNDS, SPEAKER, Batch, TalkerData, all_codes
from training.text import read_merges

EOS = CODEC_IDS["codec_eos_token_id"]
_SPREAD = 1.2           # frames around its time in which a token may be looked at
_HELD_OUT = 32          # utterances in a report
_PLAIN = dict(dropout=0.0, replace=0.0, replace_frames=0.0, replace_books=0.0, frames_share=1, end_weight=1.0)


class TalkerStage:
    name, average = "talker", 0

    def __init__(self, nano: Nano, data: TalkerData, device: str):
        self.data, self.device = data, device
        self.values = v = nano.values["talker_training"]
        self.steps, self.rate, self.patience = v["steps"], v["rate"], v["patience"]
        self.used = len(nano.fsq().books)
        speech = self.speech = Speech(nano).to(device)
        self.sounds = nn.Linear(speech.talker.head.shape[1], SOUNDS * len(data.symbols)).to(device)
        self.modules = nn.ModuleDict(dict(talker=speech.talker, predictor=speech.predictor,
                                          speaker_encoder=speech.speaker_encoder,
                                          text_embedding=speech.text_embedding, sounds=self.sounds))
        self.optimizers = optimizers(self.modules.named_parameters(), betas=(0.9, 0.95), decay=v["decay"])

    def step(self, number: int, rng: np.random.Generator) -> Mapping[str, Tensor]:
        batch = self.data.batch(rng, self.values["batch_frames"]).to(self.device)
        with mixed(self.device):
            losses = self.losses(batch, training=True)
        v = self.values
        (losses["first"] + losses["rest"] + v["guide"] * losses["guide"] + v["sounds"] * losses["sounds"]).backward()
        return {name: value.detach() for name, value in losses.items()}

    def take(self, before: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Begin with these weights; those of the phonemes only where the same ones were trained."""
        for name, values in before.items():
            if name != "sounds" or len(values["bias"]) == len(self.sounds.bias):
                self.modules[name].load_state_dict(values)

    def losses(self, batch: Batch, training: bool = False) -> dict[str, Tensor]:
        """Cross entropies in nats, and how the watched head looks at the text; when training, made harder.

        first    of codebook 0 and the end;  rest: of a code of the other books
        sounds   of the phonemes in and around the frame, from what codebook 0 is read from
        guide    -log of the watched head's attention near the right text;  text: all it gives to the text
        """
        v = self.values if training else self.values | _PLAIN
        x = self.rows(batch, v["replace"], v["replace_frames"])
        hidden, seen = batched.decoder(self.speech.talker.decoder, x, v["dropout"], v["watch"])
        index = batch.starts[:, None] - 1 + torch.arange(batch.codes.shape[1] + 1, device=x.device)
        real = torch.arange(index.shape[1], device=x.device) <= batch.lengths[:, None]  # the end is the last target
        target = torch.full(index.shape, EOS, device=x.device)
        target[:, :-1] = batch.codes[..., 0]
        target.scatter_(1, batch.lengths[:, None], EOS)
        at = hidden.gather(1, index.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[-1]))
        logits = F.linear(at[real], self.speech.talker.head).float()
        weights = torch.ones(logits.shape[-1], device=x.device)
        weights[EOS] = v["end_weight"]
        first = F.cross_entropy(logits, target[real], weights)
        said = real & (torch.arange(index.shape[1], device=x.device) < batch.lengths[:, None])
        frames, codes = at[said], batch.codes[said[:, :-1]]
        heard = batch.sounds[said[:, :-1]]
        sounds = F.cross_entropy(self.sounds(frames).float().view(heard.numel(), -1), heard.flatten(), reduction="sum")
        sounds = sounds / (heard >= 0).sum().clamp(min=1)
        if v["frames_share"] < 1:
            chosen = torch.randperm(len(frames), device=x.device)[:max(1, int(v["frames_share"] * len(frames)))]
            frames, codes = frames[chosen], codes[chosen]
        guide, text = self._guide(seen.float(), batch, index, said)
        rest = self._rest(frames, codes, v["replace_books"]).mean()
        return {"first": first, "rest": rest, "sounds": sounds, "guide": guide, "text": text}

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

    def _rest(self, hidden: Tensor, codes: Tensor, replace: float) -> Tensor:
        """Cross entropy of books 1 .. of frames: hidden [N, H], codes [N, 16] -> [books].

        replace  share of the codes before that become those of other frames: one wrong code must not lead all others
        """
        p = self.speech.predictor
        given = self._disturbed(codes[None], replace, 0.0)[0]
        inputs = torch.stack((hidden, p.first_embedding[given[:, 0]],
                              *(p.embeddings[b][given[:, b + 1]] for b in range(self.used - 2))), 1)
        x, _ = batched.decoder(p.decoder, p.project(inputs))
        logits = torch.einsum("nbh,bch->nbc", x[:, 1:], p.heads[:self.used - 1].to(x.dtype)).float()
        return F.cross_entropy(logits.flatten(0, 1), codes[:, 1:self.used].flatten(),
                               reduction="none").view(len(codes), -1).mean(0)

    def _guide(self, seen: Tensor, batch: Batch, index: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """Soft alignment of one head (Tachibana et al. 2017), with the teacher's times for the diagonal."""
        n = seen.shape[-1]
        future = torch.ones(n, n, dtype=torch.bool, device=seen.device).triu(1)
        attention = seen.masked_fill(future, -torch.inf).softmax(-1)
        rows = attention.gather(1, index[:, :, None].clamp(max=n - 1).expand(-1, -1, n))  # [B, F + 1, n]
        now = torch.arange(index.shape[1], device=seen.device)[:, None] + 0.5
        near = (-((now - batch.centres[:, None]) / _SPREAD).square() / 2).exp() * batch.keys[:, None]
        right = (rows * near).sum(-1).clamp(min=1e-5).log()[said]
        return -right.mean(), (rows * batch.keys[:, None]).sum(-1)[said].mean()

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
    loaded = load_codec(nano, trained(work / codec))
    data = TalkerData(nano, corpus, all_codes(corpus, loaded, work / "codes.npz"), read_merges(folder / "merges.txt"),
                      silent=nano.values["talker_training"]["silent"])
    return TalkerStage(nano, data, device), loaded


def main(arguments: list[str] | None = None) -> None:
    parser = stage_arguments("training.talker", __doc__.splitlines()[0])
    parser.add_argument("--codec", default="vocoder", help="the stage whose codec is used; all have the same codes")
    args = parser.parse_args(arguments)
    prepare(args.threads)
    torch.manual_seed(0)
    stage, _ = new_stage(args.config, args.data, args.work, args.codec, args.device)
    if args.start:
        stage.take(trained(args.start))
    run(stage, args)


if __name__ == "__main__":
    main()
