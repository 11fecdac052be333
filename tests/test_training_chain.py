"""All commands one after the other, as training/README.md gives them, on a tiny model and a humming teacher."""

import math
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_training import Humming, tiny_nano

from training import codec, data, ears, evaluate, export, forced, loop, losses, slim, talker, teachers
from training.corpus import Corpus
from training.model import Nano

README = Path(__file__).parent.parent / "training" / "README.md"
MODULES = {"data": data, "codec": codec, "talker": talker, "forced": forced, "export": export, "evaluate": evaluate}


def commands() -> list[list[str]]:
    block = re.search(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.S).group(1)
    return [shlex.split(line) for line in block.replace("$C", "CONFIG").splitlines() if line.startswith("python")]


def test_the_readmes_commands_make_a_pair_that_speaks(tmp_path, monkeypatch, capsys):
    nano = tiny_nano(tmp_path)
    nano.path.write_text(nano.path.read_text().replace("[use]", "[use]\nsingle_voice = true"))  # as the shipped config
    (tmp_path / "data.noun").write_text('0 | "nothing to see"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(teachers.TEACHERS, "hibari", Humming)
    monkeypatch.setattr(Humming, "__init__", lambda self, voice: setattr(self, "_base", 90))
    short = {"--hours": "0.01", "--workers": "1", "--minutes": "0.005", "--steps": "2", "--count": "1", "--seeds": "1"}
    monkeypatch.setattr(evaluate, "speech_report", partial(evaluate.speech_report, most=4))
    done = []
    for _, _, module, *words in commands():
        for option, value in short.items():
            if option in words:
                words[words.index(option) + 1] = value
        words = [str(nano.path) if word == "CONFIG" else word for word in words]
        name = module.removeprefix("training.")
        words += ["--deaf"] if name in ("evaluate", "forced") else ["--wordnet", "."] if name == "data" else []
        MODULES[name].main(words)
        done.append(name)
    assert done == ["data", *["codec"] * 4, "evaluate", "talker", "forced", "export", "evaluate"]
    printed = capsys.readouterr().out
    assert re.search(r"start_db .*at most 6", printed) and re.search(r"ended .*at least 99", printed)
    spoken = Corpus(tmp_path / "data")
    figures = evaluate.speech_report(tmp_path / "pair", spoken, 1, 1, None)
    assert figures["speed"] > 0 and set(figures) == {"ended", "speed", "load"}
    spoken.held_out[0] = replace(spoken.held_out[0], text="All of it.")
    figures = evaluate.speech_report(tmp_path / "pair", spoken, 1, 1, lambda samples: "All of")
    assert figures["wer"] == figures["wer_short"] == pytest.approx(100 / 3) and "wer_long" not in figures
    slim.main(["work/adversarial", "-o", "codec.pt"])
    codec.main(["adversarial", str(nano.path), "data", "more", "--start", "codec.pt", "--steps", "1"])
    slim.main(["work/talker", "-o", "talker.pt", "--type", "q8_0"])
    talker.main([str(nano.path), "data", "more", "--codec", str(tmp_path / "codec.pt"), "--start", "talker.pt",
                 "--steps", "1"])
    begun, state = loop.trained(Path("talker.pt"))["talker"], loop.trained(Path("more/talker"))["talker"]
    assert max(float((begun[name] - state[name]).abs().max()) for name in begun) < 0.01  # one step away
    begun, state = loop.trained(Path("codec.pt")), torch.load("more/adversarial/checkpoint.pt", weights_only=True)
    moved = {name for name, value in begun["code2wav"].items()
             if not torch.equal(value.float(), state["modules"][f"code2wav.{name}"])}
    assert state["step"] == 1 and moved and all(re.match("entry|decoder|post_", name) for name in moved)


def test_a_pairs_folder_without_a_talker_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="pair: no talker"):
        evaluate.speech_report(tmp_path / "pair", None, 1, 1, None)


def test_without_held_out_texts_there_are_no_figures():
    with pytest.raises(ValueError, match="held out"):
        evaluate.codec_report(None, SimpleNamespace(held_out=[]), 40, None)


@pytest.mark.parametrize("option", [["speech", "--stage", "x"], ["codec", "--seeds", "2"]])
def test_what_is_evaluated_has_its_own_options(option, capsys):
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([option[0], "nano.toml", "data", "work", *option[1:]])
    assert "unrecognized arguments" in capsys.readouterr().err


def test_the_shipped_config_fits_the_architecture():
    nano = Nano.read(Path(__file__).parent.parent / "configs" / "training" / "nano.toml")
    dims = nano.checkpoint_config().dims
    assert dims.code_groups == dims.wav_quantizers == 16 and dims.codec_vocab == 3072
    assert dims.latent >= 164 and dims.predictor_vocab == dims.codebook_size >= nano.fsq().codes


def test_errors_are_counted_in_words():
    tally = ears.Tally()
    assert tally.add("Four hundred and sixty two cats.", "462 cats") == 0
    assert tally.add("One two three four.", "one too three") == 2
    assert tally.rate == pytest.approx(100 * 2 / (len(ears.words("Four hundred and sixty two cats")) + 4))
    assert math.isnan(ears.Tally().rate)
    assert ears.distance([], ["a", "b"]) == 2 and ears.distance(["a"], []) == 1
    assert ears.distance(list("kitten"), list("sitting")) == 3


def test_there_is_no_figure_of_pitch_where_nothing_is_voiced():
    rows = torch.zeros(1, 82, 8)
    assert set(losses.feature_figures(rows, rows)) == {"mel_l1", "voicing"}
    voiced = torch.cat((torch.randn(1, 81, 8), torch.ones(1, 1, 8)), 1)
    assert losses.feature_figures(voiced, voiced)["pitch_r2"] == 1


def test_verdicts():
    assert evaluate.verdict("codec", "wer", 6.9).startswith("good")
    assert evaluate.verdict("speech", "ended", 98.0).startswith("NOT GOOD")
    assert evaluate.verdict("codec", "mel_l1", 1.0) == ""


def test_nothing_in_the_package_imports_training():
    package = Path(__file__).parent.parent / "tts_cli"
    assert not [p for p in package.rglob("*.py") if re.search(r"^\s*(from|import) training", p.read_text(), re.M)]
    assert np.all([(README.parent / f"{name}.py").exists() for name in MODULES])
