"""How much a talker knows of held-out speech whose past it is given: cheap, and early to tell what goes wrong.

    python -m training.forced CONFIG DATA WORK [--codec vocoder] [--count 40]

first, rest    nats of codebook 0, and of a code of the other books
text           nats of codebook 0 that the text of another utterance would cost: what was learned of the text
right          per cent of the frames whose middle sound it tells
wer            per cent of words, where every frame is the most likely one after the real past
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from training import batched
from training.codec_model import Codec
from training.ears import Ears, Tally
from training.loop import command, prepare
from training.model import BOOKS
from training.talker import TalkerStage, new_stage
from training.talker_data import PARTS, SOUNDS_AROUND, Batch

_TOGETHER = 32


@torch.no_grad()
def forced_report(stage: TalkerStage, codec: Codec, count: int, ears: Ears | None) -> dict[str, float]:
    """The figures above; without `ears` all but wer. Raises `ValueError` where no text is held out."""
    data, rng = stage.data, np.random.default_rng(0)
    chosen = sorted(data.held_out[:count], key=lambda u: u.frames)
    if not chosen:
        raise ValueError("no text is held out that is short enough: there is nothing to measure by")
    sums = dict.fromkeys(("first", "rest", "text", "right"), 0.0)
    tally, frames = Tally(), 0
    for i in range(0, len(chosen), _TOGETHER):
        utterances = chosen[i:i + _TOGETHER]
        batch = data.collate(utterances, rng, "full").to(stage.device)
        number = int(batch.lengths.sum())
        losses, other = stage.losses(batch), stage.losses(_with_other_text(batch))
        sums["first"] += float(losses["first"]) * number
        sums["rest"] += float(losses["rest"]) * number
        sums["text"] += float(other["first"] - losses["first"]) * number
        frames += number
        hidden, _ = batched.decoder(stage.speech.talker.decoder, stage.rows(batch))
        for k, u in enumerate(utterances):
            start = int(batch.starts[k]) - 1
            mine = hidden[k, start:start + u.frames]
            middle = PARTS * -SOUNDS_AROUND[0] + PARTS // 2
            told = stage.hints.sounds(mine).view(*batch.sounds[k, :u.frames].shape, -1)[:, middle].argmax(-1)
            sums["right"] += 100 * float((told == batch.sounds[k, :u.frames, middle]).sum())
            if ears:
                tally.add(u.text, ears(codec.speak(most_likely(stage, mine)).numpy()))
    return {name: value / frames for name, value in sums.items()} | ({"wer": tally.rate} if ears else {})


@torch.no_grad()
def most_likely(stage: TalkerStage, hidden: Tensor) -> Tensor:
    """Hidden states [n, H] -> codes [n, 16], book by book the most likely one after those before it."""
    p, head = stage.speech.predictor, stage.speech.talker.head
    codes = [F.linear(hidden, head)[:, :p.heads.shape[1]].argmax(-1)]
    inputs = [hidden, p.first_embedding[codes[0]]]
    for book in range(stage.used - 1):
        x, _ = batched.decoder(p.decoder, p.project(torch.stack(inputs, 1)))
        codes.append(F.linear(x[:, -1], p.heads[book]).argmax(-1))
        inputs.append(p.embeddings[book][codes[-1]])
    return F.pad(torch.stack(codes, 1), (0, BOOKS - len(codes)))


def _with_other_text(batch: Batch) -> Batch:
    """The tokens of all texts in another order."""
    text = batch.text.clone()
    text[batch.body] = text[batch.body].roll(len(text[batch.body]) // 2)
    return replace(batch, text=text)


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.forced", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--codec", default="vocoder", help="the stage whose codec is used")
    parser.add_argument("--count", type=int, default=40, help="held-out utterances")
    parser.add_argument("--deaf", action="store_true", help="without word error rates, which need faster-whisper")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(arguments)
    prepare(args.threads)
    stage, codec = new_stage(args.config, args.data, args.work, args.codec)
    stage.data.silent = 1.0
    told = stage.take(args.work / "talker")
    stage.modules.eval()
    ears = None if args.deaf else Ears(threads=args.threads)
    for name, value in forced_report(stage, codec, args.count, ears).items():
        if told or name != "right":  # hints of other sounds say nothing of these
            print(f"{name:<8}{value:8.3f}")


if __name__ == "__main__":
    main()
