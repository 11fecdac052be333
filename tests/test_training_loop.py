"""A stage stopped at any step comes to the same weights as one that was not; each stage learns something tiny."""

import argparse
import signal

import numpy as np
import pytest
import torch
from tiny_training import corpus, nano, talker_data  # noqa: F401 - fixtures
from torch import nn

from training import slim, talker
from training.codec import Adversarial, Latents, Prevocoder, Vocoder
from training.codec_model import load_codec
from training.loop import CHECKPOINT, command, prepare, run, train, trained
from training.losses import START, sound_losses, start_loss
from training.optim import orthogonalized
from training.talker import TalkerStage
from tts_cli.errors import UsageError


@pytest.fixture(scope="module")
def latents(nano, corpus, tmp_path_factory):  # noqa: F811
    """A folder with a few steps of the first stage."""
    work = tmp_path_factory.mktemp("work")
    train(upto(Latents, 3, nano, corpus), work)
    return work


def upto(kind, steps: int, nano, data, before=None):  # noqa: F811
    """A stage that begins from seed 0, or with the stages in the folder `before`, and is over after `steps`."""
    torch.manual_seed(0)
    stage = kind(nano, data, "cpu")
    stage.steps = steps
    if before:
        stage.begin(before)
    return stage


@pytest.mark.parametrize("kind", ["latents", "vocoder", "adversarial", "talker"])
def test_a_stopped_stage_takes_the_same_next_step(kind, nano, corpus, latents, tmp_path):  # noqa: F811
    if kind in ("vocoder", "adversarial"):
        (tmp_path / "latents").symlink_to(latents / "latents")
    if kind == "adversarial":
        train(upto(Vocoder, 1, nano, corpus, tmp_path), tmp_path)
    stage = {"latents": Latents, "vocoder": Vocoder, "adversarial": Adversarial, "talker": TalkerStage}[kind]
    data = talker_data(nano, corpus) if kind == "talker" else corpus

    def weights(folder, *slices):
        for number, most in enumerate(slices):  # what goes on needs only its checkpoint
            before = tmp_path if number == 0 else None
            ended = train(upto(stage, 3, nano, data, before), folder, most=most)
        assert ended
        return torch.load(folder / kind / CHECKPOINT, weights_only=True)

    whole, halves = weights(tmp_path / "whole", 3), weights(tmp_path / "halves", 1, 2)
    assert whole["step"] == halves["step"] == 3
    for name, value in whole["modules"].items():
        assert torch.equal(value, halves["modules"][name]), name


def test_a_slice_of_time_ends_with_a_checkpoint(nano, corpus, tmp_path):  # noqa: F811
    stage = upto(Latents, 10**6, nano, corpus)
    assert train(stage, tmp_path, minutes=0.01) is False
    done = torch.load(tmp_path / "latents" / CHECKPOINT, weights_only=True)["step"]
    assert 0 < done < 1000
    assert set(trained(tmp_path / "latents")) == {"encoder", "code2wav"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_stage_with_a_checkpoint(number, nano, corpus, tmp_path):  # noqa: F811
    stage = upto(Latents, 10**6, nano, corpus)
    plain, before = stage.step, signal.getsignal(number)
    stage.step = lambda step, random: (signal.raise_signal(number) if step == 1 else None) or plain(step, random)
    with pytest.raises(SystemExit) as ended:
        train(stage, tmp_path)
    assert ended.value.code == 128 + number and signal.getsignal(number) is before
    assert torch.load(tmp_path / "latents" / CHECKPOINT, weights_only=True)["step"] == 2


def test_a_signal_that_is_ignored_stays_so(nano, corpus, tmp_path):  # noqa: F811
    """As that of Ctrl-C is in the background of a script."""
    stage = upto(Latents, 2, nano, corpus)
    plain, before = stage.step, signal.signal(signal.SIGINT, signal.SIG_IGN)
    stage.step = lambda step, random: signal.raise_signal(signal.SIGINT) or plain(step, random)
    try:
        assert train(stage, tmp_path) and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("type, bytes, most", [("f16", 2, 1e-3), ("q8_0", 1, 1e-2)])
def test_a_slim_file_stands_for_its_stage(type, bytes, most, nano, corpus, latents, tmp_path):  # noqa: F811
    whole = trained(latents / "latents")
    slim.main([str(latents / "latents"), "-o", str(tmp_path / "codec.pt"), "--type", type])
    parameters = sum(value.numel() for values in whole.values() for value in values.values())
    assert (tmp_path / "codec.pt").stat().st_size < 1.3 * bytes * parameters + 120_000
    small = trained(tmp_path / "codec.pt")
    for module, values in whole.items():
        for name, value in values.items():
            assert small[module][name].shape == value.shape
            assert (small[module][name] - value).abs().max() <= most * value.abs().max() + 1e-6, name
    load_codec(nano, tmp_path / "codec.pt")


def test_nothing_trained_yet_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing trained"):
        trained(tmp_path / "latents")


def test_a_file_of_something_else_is_not_begun_with(nano, corpus, latents, tmp_path):  # noqa: F811
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(ValueError, match="text.pt: no checkpoint"):
        trained(tmp_path / "text.pt")
    with pytest.raises(ValueError, match="there is no talker"):
        upto(TalkerStage, 1, nano, talker_data(nano, corpus)).take(latents / "latents")


def test_new_phonemes_are_told_how_to_go_on(nano, corpus, tmp_path):  # noqa: F811
    """The checkpoint of a talker is refused for speech of more phonemes; as --start it lends all but the hints."""
    def stage(folder, *more):
        data = talker_data(nano, corpus)
        data.symbols += more
        args = argparse.Namespace(work=folder, start=tmp_path / "talker.pt", steps=1, minutes=1)
        return upto(TalkerStage, 1, nano, data), args

    one, _ = stage(None)
    train(one, tmp_path)
    slim.main([str(tmp_path / "talker"), "-o", str(tmp_path / "talker.pt")])
    with pytest.raises(ValueError, match=r"phonemes.*training.slim \S*talker .*--start"):
        run(*stage(tmp_path, "new"))
    after, args = stage(tmp_path / "anew", "new")
    assert one.take(args.start) and not after.take(args.start)
    close = torch.testing.assert_close
    close(after.speech.talker.state_dict(), one.speech.talker.state_dict(), atol=1e-2, rtol=1e-2)
    assert torch.equal(after.hints.clock.weight, stage(None, "new")[0].hints.clock.weight)
    run(after, args)
    assert torch.load(tmp_path / "anew" / "talker" / CHECKPOINT, weights_only=True)["step"] == 1


def test_a_start_file_is_not_read_where_there_is_a_checkpoint(nano, corpus, tmp_path):  # noqa: F811
    args = argparse.Namespace(work=tmp_path, start=tmp_path / "gone.pt", steps=1, minutes=1)
    with pytest.raises(FileNotFoundError, match="gone.pt"):
        run(upto(Prevocoder, 1, nano, corpus), args)
    train(upto(Prevocoder, 1, nano, corpus), tmp_path)
    run(upto(Prevocoder, 1, nano, corpus), args)


@pytest.mark.parametrize("error", [
    FileNotFoundError(2, "No such file", "nano.toml"), ValueError("no voice"), UsageError("no device")])
def test_what_cannot_be_used_ends_a_command_with_one_line(error, capsys):
    @command
    def main(arguments):
        raise error

    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2 and capsys.readouterr().err == f"error: {error}\n"


def test_a_device_that_there_is_not_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        talker.main(["nano.toml", "data", str(tmp_path), "--device", "cuda:99"])
    assert ended.value.code == 2 and "cuda:99" in capsys.readouterr().err


class Falling:
    """A stage of one number whose held-out loss gets worse from the third report on."""

    name, steps, rate, average, patience = "falling", 100, 0.1, 0, 2

    def __init__(self):
        self.modules = nn.ModuleDict(dict(one=nn.Linear(1, 1, bias=False)))
        self.optimizers = [torch.optim.SGD(self.modules.parameters(), lr=0.1)]
        self.reports = 0

    def step(self, number, rng):
        loss = self.modules["one"].weight.sum()
        loss.backward()
        return {"loss": loss.detach()}

    def report(self):
        self.reports += 1
        return {"loss": abs(self.reports - 3)}


def test_the_best_weights_are_kept_and_patience_ends(tmp_path):
    stage = Falling()
    assert train(stage, tmp_path, evaluate_every=5) is True
    assert stage.reports == 6  # the third was best, the patience of two is over after three worse ones
    last = torch.load(tmp_path / "falling" / CHECKPOINT, weights_only=True)
    assert last["step"] == 30 and trained(tmp_path / "falling")["one"]["weight"] > last["modules"]["one.weight"]


def test_orthogonalized_matrices_have_singular_values_of_about_one():
    m = torch.randn(24, 40, generator=torch.Generator().manual_seed(0)) * torch.logspace(-2, 1, 24)[:, None]
    values = torch.linalg.svdvals(orthogonalized(m).float())
    assert values.max() < 1.3 and values.median() > 0.6
    assert torch.equal(orthogonalized(m.mT), orthogonalized(m).mT)


def learned(stage, steps: int, name: str, rate: float = 3e-3) -> tuple[float, float]:
    """A loss at the first and the last of some steps on always the same batch."""
    prepare(threads=1)
    values = []
    for _ in range(steps):
        for o in stage.optimizers:
            o.zero_grad()
            for group in o.param_groups:
                group["lr"] = rate
        torch.manual_seed(1)
        values.append(float(stage.step(1, np.random.default_rng(1))[name]))
        for o in stage.optimizers:
            o.step()
    return values[0], values[-1]


def test_the_latents_learn_a_batch(nano, corpus):  # noqa: F811
    before, after = learned(upto(Latents, 1, nano, corpus), 20, "mel")
    assert after < 0.8 * before


def test_the_vocoder_learns_a_batch(nano, corpus, latents):  # noqa: F811
    before, after = learned(upto(Vocoder, 1, nano, corpus, latents), 12, "mel")
    assert after < 0.9 * before


def test_a_click_at_the_start_is_heard():
    real = torch.zeros(1, 9600)
    real[:, 2400:] = torch.randn(1, 7200, generator=torch.Generator().manual_seed(0)) / 10
    click = real.clone()
    click[:, :40] = 0.1
    assert not start_loss(real, real) and not start_loss(click, click)
    assert start_loss(click, real) == pytest.approx(0.1 * 40 / START)
    assert sound_losses(click, real)["stft"] > 0.01  # windows reach out over the first sample


def test_the_vocoder_goes_on_from_measured_features(nano, corpus, latents, tmp_path):  # noqa: F811
    (tmp_path / "latents").symlink_to(latents / "latents")
    plain = upto(Vocoder, 1, nano, corpus, tmp_path).codec
    train(upto(Prevocoder, 2, nano, corpus), tmp_path)
    after = upto(Vocoder, 1, nano, corpus, tmp_path).codec
    averaged = trained(tmp_path / "prevocoder")["code2wav"]["entry.weight"]
    assert torch.equal(after.code2wav.entry.weight, averaged) and not torch.equal(plain.code2wav.entry.weight, averaged)
    assert torch.equal(after.code2wav.pre_conv.weight, plain.code2wav.pre_conv.weight)  # that of the latents


def test_the_talker_learns_a_batch_and_looks_at_the_text(nano, corpus, tmp_path):  # noqa: F811
    stage = upto(TalkerStage, 1, nano, talker_data(nano, corpus))
    batch = stage.data.collate(stage.data.train[:4], np.random.default_rng(0), "full")
    optimizer = torch.optim.AdamW(stage.modules.parameters(), lr=3e-3)
    seen = []
    for _ in range(30):
        losses = stage.losses(batch)
        seen.append({name: float(value.detach()) for name, value in losses.items()})
        optimizer.zero_grad()
        (losses["first"] + losses["rest"] + losses["guide"]).backward()
        optimizer.step()
    assert seen[-1]["first"] < 0.4 * seen[0]["first"] and seen[-1]["rest"] < 0.8 * seen[0]["rest"]
    assert seen[-1]["guide"] < 0.7 * seen[0]["guide"] and seen[-1]["text"] > seen[0]["text"]
