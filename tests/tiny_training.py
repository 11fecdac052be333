"""A tiny nano and a teacher that hums, so that every stage of training runs in seconds."""

import numpy as np
import pytest

from training import teachers
from training.corpus import Corpus
from training.data import main as make_data
from training.model import Nano
from training.talker_data import TalkerData, key
from training.teachers import Spoken, tidy_sounds, word_marks
from training.text import read_merges

RATE = 24000
CONFIG = """
[codec]
books = [[8, 5], [5, 5], [4, 3]]
codes = 64
codebook_width = 32
latent = 192
hidden = 32
intermediate = 32
head_dim = 4
decoder = 64
encoder = 32

[talker]
hidden = 64
intermediate = 96
layers = 2
heads = 2
kv_heads = 1
head_dim = 32
rope_theta = 10000.0

[predictor]
hidden = 32
intermediate = 32
layers = 1
heads = 1
kv_heads = 1
head_dim = 32

[speaker]
channels = 16
attention = 8
squeeze = 8

[text]
tokens = 300
languages = { english = 2050 }

[use]
text_mode = "full"
max_chars = 80

[sampling]
temperature = 0.8
top_k = 50
top_p = 1.0

[data]
wordnet = ""
texts = []
templates = 60

[latents]
steps = 200
rate = 2e-3
batch = 4
frames = 8
book_dropout = 0.3
least_books = 1

[prevocoder]
steps = 200
rate = 2e-3
batch = 2
columns = 16

[vocoder]
steps = 200
rate = 2e-3
batch = 2
columns = 16

[adversarial]
steps = 200
rate = 1e-3
batch = 2
columns = 24
warmup = 1

[talker_training]
steps = 200
rate = 2e-3
batch_frames = 100
decay = 0.0
dropout = 0.1
replace = 0.2
replace_frames = 0.6
own_codes = 1.0
frames_share = 0.5
end_weight = 3.0
watch = [0, 1]
hints = { sounds = 1.0, alone = 1.0, letters = 0.5, clock = 2.0, guide = 0.3 }
full = 0.5
silent = 0.3
patience = 12
"""


def tiny_nano(folder) -> Nano:
    path = folder / "tiny.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return Nano.read(path)


class Humming:
    """A tone with overtones per word, as high as the word is long; silence before, between and after."""

    def __init__(self, voice: str):
        self._base = {"low": 90, "high": 180}[voice]

    def speak(self, text: str, seed: int, speed: float = 1.0) -> Spoken:
        if "zero" in text:
            raise ValueError("not this one")
        parts, sounds = [np.zeros(RATE // 10)], [("", 0.1)]
        for word in text.split():
            t = np.arange(int(RATE / 5 / speed)) / RATE
            tone = sum(np.sin(2 * np.pi * (self._base + 10 * len(word)) * k * t) / k for k in range(1, 6))
            parts += [0.1 * tone * np.hanning(len(t)), np.zeros(RATE // 50)]
            start, seconds = sounds[-1][1], 0.2 / speed
            sounds += [(letter, start + seconds * i / len(word)) for i, letter in enumerate(word, 1)]
            sounds.append((" ", start + seconds + 0.02))
        samples = np.concatenate([*parts, np.zeros(RATE // 10)]).astype(np.float32)
        return Spoken(samples, word_marks(text, sounds), tidy_sounds(sounds))


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    return tiny_nano(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def corpus(nano, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "data.noun").write_text('0 | "nothing to see"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(teachers.TEACHERS, "hum", Humming)
        make_data([str(nano.path), str(folder), "--voice", "hum:low", "--hours", "0.02", "--wordnet", str(folder)])
    corpus = Corpus(folder)
    corpus.folder = folder
    return corpus


def talker_data(nano, corpus) -> TalkerData:
    """With random codes."""
    codes = {}
    rng = np.random.default_rng(0)
    for u in [*corpus.train, *corpus.held_out]:
        codes[key(u)] = np.pad(rng.integers(0, 12, (u.frames, 3)), ((0, 0), (0, 13)))
    return TalkerData(nano, corpus, codes, read_merges(corpus.folder / "merges.txt"), silent=0.3)
