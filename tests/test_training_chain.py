"""All commands one after the other, as training/README.md gives them, on a tiny model and a humming teacher."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_training import Humming, tiny_nano

from training import codec, data, ears, evaluate, export, forced, loop, slim, talker, teachers
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
    short = {"--hours": "0.01", "--workers": "1", "--minutes": "0.005", "--count": "1", "--seeds": "1"}
    done = []
    for _, _, module, *words in commands():
        for option, value in short.items():
            if option in words:
                words[words.index(option) + 1] = value
        words = [str(nano.path) if word == "CONFIG" else word for word in words]
        name = module.removeprefix("training.")
        words += ["--deaf"] if name in ("evaluate", "forced") else ["--wordnet", "."] if name == "data" else []
        if words[0] != "speech":
            MODULES[name].main(words)
        done.append(name)
    assert done == ["data", *["codec"] * 4, "evaluate", "talker", "forced", "export", "evaluate"]
    assert re.search(r"pitch_r2 .*at least 0.85", capsys.readouterr().out)
    figures = evaluate.speech_report(tmp_path / "pair", Corpus(tmp_path / "data"), 1, 1, None, most=4)
    assert figures["speed"] > 0 and set(figures) == {"ended", "speed", "load"}
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
    assert ears.distance([], ["a", "b"]) == 2 and ears.distance(["a"], []) == 1
    assert ears.distance(list("kitten"), list("sitting")) == 3


def test_verdicts():
    assert evaluate.verdict("codec", "wer", 6.9).startswith("good")
    assert evaluate.verdict("speech", "ended", 98.0).startswith("NOT GOOD")
    assert evaluate.verdict("codec", "mel_l1", 1.0) == ""


def test_nothing_in_the_package_imports_training():
    package = Path(__file__).parent.parent / "tts_cli"
    assert not [p for p in package.rglob("*.py") if re.search(r"^\s*(from|import) training", p.read_text(), re.M)]
    assert np.all([(README.parent / f"{name}.py").exists() for name in MODULES])
