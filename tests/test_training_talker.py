"""What the talker is trained on is what the product shows it when it speaks."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_training import corpus, nano, talker_data  # noqa: F401 - fixtures

from training import batched
from training.codec_model import Codec
from training.export import export
from training.forced import forced_report, most_likely
from training.talker import EOS, TalkerStage
from training.talker_data import LATER, LETTER_SOUNDS, NOTHING, PARTS, SPEAKER, UNKNOWN, all_codes
from training.text import read_merges
from tts_cli.engine import SpeechRequest
from tts_cli.loading import load_engine
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.pair import Pair
from tts_cli.qwen3tts.sampling import SamplingOptions


@pytest.fixture(scope="module")
def stage(nano, corpus):  # noqa: F811
    torch.manual_seed(0)
    return TalkerStage(nano, talker_data(nano, corpus), "cpu")


@pytest.fixture(scope="module")
def pair(stage, nano, corpus, tmp_path_factory):  # noqa: F811
    merges = read_merges(corpus.folder / "merges.txt")
    return export(nano, stage.speech, merges, tmp_path_factory.mktemp("pair"), type="f32")


@pytest.mark.parametrize("layout", ["full", "streaming"])
@torch.no_grad()
def test_rows_are_those_of_the_engine(stage, pair, layout):
    """Prompt, overlay and frames of a training item, against the engine's own embedding of the same request."""
    data = stage.data
    data.silent = 0
    u = data.train[3]
    for draw in range(20):  # until the language drawn is the one asked for below
        batch = data.collate([u], np.random.default_rng(draw), layout)
        if batch.codec[0, 4] == data.special.think_bos and batch.codec[0, 3] == data.special.think:
            break
    rows = stage.rows(batch, replace=0)[0]
    engine = load_engine(*pair, device="cpu", dtype="float32")
    clip = stage.speech.speaker_encoder(batch.clips[0])
    voice = engine.voice_from_clip(np.zeros(24000, np.float32), "v")
    voice = type(voice)("v", clip.numpy(), None, None, engine.pair.fingerprint(), engine.pair.name)
    plan = engine.plan(SpeechRequest(u.text, voice=voice, language="english", text_mode=layout))
    prompt = engine.embed(plan.prompt)
    start = int(batch.starts[0])
    assert len(prompt.rows) == start and (rows[:start] - prompt.rows).abs().max() < 1e-5
    overlays = prompt.overlays()
    for t in range(u.frames):
        frame = engine.models.predictor.embed_frame(batch.codes[0, t]) + next(overlays)
        assert (rows[start + t] - frame).abs().max() < 1e-5
    assert (batch.codec[0] == SPEAKER).sum() == 1 and (batch.codec[0, start:] == NOTHING).all()


@torch.no_grad()
def test_losses_are_the_products_own_likelihoods(stage, pair):
    """Cross entropy of codebook 0, step by step with the engine's cache; EOS is the last target."""
    u = stage.data.train[0]
    batch = stage.data.collate([u], np.random.default_rng(2), "streaming")
    talker = load_engine(*pair, device="cpu", dtype="float32").models.talker
    cache = talker.decoder.new_cache(8)
    rows, start = stage.rows(batch, 0)[0], int(batch.starts[0])
    hidden, entropy = talker.prefill(rows[:start], cache), 0.0
    targets = [*batch.codes[0, :, 0].tolist(), EOS]
    for t, target in enumerate(targets):
        entropy -= float(talker.logits(hidden).log_softmax(-1)[target])
        if t < u.frames:
            hidden = talker.step(rows[start + t], cache)
    assert float(stage.losses(batch)["first"]) == pytest.approx(entropy / len(targets), abs=1e-3)


@torch.no_grad()
def test_the_most_likely_frames_are_those_the_product_would_say(stage, pair):
    hidden = torch.randn(5, stage.speech.talker.head.shape[1], generator=torch.Generator().manual_seed(0))
    codes = most_likely(stage, hidden)
    models = load_engine(*pair, device="cpu", dtype="float32").models
    first = models.talker.logits(hidden)[:, :64].argmax(-1)
    greedy = [SamplingOptions(temperature=0.0, top_k=0, top_p=1.0)] * 5
    frames = models.predictor.predict(hidden, first, greedy, torch.zeros(5, 15))
    assert torch.equal(codes[:, :stage.used], frames[:, :stage.used])


@torch.no_grad()
def test_a_talker_with_a_past_is_judged(stage):
    """An untrained one: it knows as little of the right text as of another, and few sounds."""
    figures = forced_report(stage, None, 4, None)
    assert set(figures) == {"first", "rest", "text", "right"} and 0 <= figures["right"] < 60
    assert abs(figures["text"]) < 0.1 and figures["first"] > 3


@torch.no_grad()
def test_the_predictor_sees_codes_it_would_say_itself(stage):
    """Some codes of a frame become drawn ones, likely after the real ones before; the targets stay the real ones."""
    torch.manual_seed(0)
    codes = torch.randint(12, (40, stage.used))
    hidden = torch.randn(40, stage.speech.talker.head.shape[1])
    first = F.one_hot(codes[:, 0] + 1, 3072) * 50.0  # it is sure of the next code
    assert stage._drifted(hidden, codes, first, 0.0) is codes
    drifted = stage._drifted(hidden, codes, first, 1.0)
    other = drifted != codes
    assert 0.2 < other.float().mean() < 0.8 and (drifted[:, 0][other[:, 0]] == codes[:, 0][other[:, 0]] + 1).all()
    assert other.float().mean(1).std() > 0.15  # each frame has its own share
    assert not torch.allclose(stage._rest(hidden, codes, codes), stage._rest(hidden, codes, drifted))


def test_codes_of_another_codec_are_made_anew(nano, corpus, tmp_path):  # noqa: F811
    torch.manual_seed(0)
    path, one, other = tmp_path / "work" / "codes.npz", Codec(nano), Codec(nano)  # a folder that is not there yet
    first, second = (all_codes(corpus, codec, path) for codec in (one, other))
    assert any(not np.array_equal(first[name], second[name]) for name in first)
    written = path.stat().st_mtime_ns
    again = all_codes(corpus, other, path)
    assert path.stat().st_mtime_ns == written and all(np.array_equal(again[name], second[name]) for name in second)


@pytest.mark.parametrize("layout", ["full", "streaming"])
def test_every_token_of_the_text_is_told_of(stage, layout):
    u = replace(stage.data.train[5], text=stage.data.train[5].text[:6])  # shorter than its sound
    batch = stage.data.collate([u], np.random.default_rng(0), layout)
    assert batch.keys.sum() == batch.body.sum() == len(stage.data.reader.read(u.text)[0])


@torch.no_grad()
def test_the_words_keys_follow_the_sound(stage):
    u = stage.data.train[5]
    batch = stage.data.collate([u], np.random.default_rng(0), "full")
    ids, _ = stage.data.reader.read(u.text)
    assert batch.text[0][batch.body[0]].tolist() == ids
    assert torch.equal(batch.body[0][:-LATER], batch.keys[0][LATER:])
    centres = batch.centres[0][batch.keys[0]]
    assert (centres.diff() >= 0).all() and centres[0] >= 1 and centres[-1] <= u.frames
    told = [stage.data.symbols[i] for i in batch.letters[0][batch.keys[0]][:, LETTER_SOUNDS // 2 - 1]]  # just before
    seconds = (0.08 * (centres - 0.125)).tolist()
    right = [next((s for s, end in u.sounds if second < end), "") for second in seconds]
    assert sum(a != b for a, b in zip(told, right, strict=True)) <= 1  # one lies where two sounds meet
    assert len(set(told)) > 3 and (batch.letters[0][~batch.keys[0]] == UNKNOWN).all()


def test_each_frame_is_told_its_phoneme(stage):
    """The sounds of the words in their order, silence around; nothing of one that nobody was trained on."""
    data = stage.data
    u = data.train[5]
    windows = data.collate([u], np.random.default_rng(0), "full").sounds[0]
    before, found, behind, last = windows.split(PARTS, 1)
    assert torch.equal(before[1:], found[:-1]) and torch.equal(behind[:-1], found[1:])
    assert torch.equal(last[:-2], found[2:])
    found = found.flatten()
    said = [symbol for symbol, _ in groupby(data.symbols[i] for i in found) if symbol.strip()]
    sounds = iter([symbol for symbol, _ in u.sounds])
    assert len(said) > len(u.sounds) // 2 and all(symbol in sounds for symbol in said)
    assert data.symbols[found[0]] == data.symbols[found[-1]] == ""
    nobody_knows = data.collate([replace(u, sounds=(("?", 999.0),))], np.random.default_rng(0), "full")
    assert (nobody_knows.sounds == UNKNOWN).all() and stage.losses(nobody_knows)["sounds"] == 0


def test_what_is_fed_back_is_disturbed_by_codes_and_by_frames(stage):
    torch.manual_seed(0)
    codes = torch.arange(8 * 50 * 16).view(8, 50, 16)
    disturbed = stage._disturbed(codes, 0.2, 1.0)
    other = disturbed != codes
    assert torch.isin(disturbed, codes).all()
    whole = other.all(-1).float().mean(1)
    assert whole.min() < 0.4 < 0.6 < whole.max()  # of each utterance another share
    assert 0.1 < other[~other.all(-1)].float().mean() < 0.3


@torch.no_grad()
def test_padding_changes_nothing(stage):
    """An utterance alone and beside a longer one: the same loss, as long as nothing is drawn."""
    data = stage.data
    data.silent = 1
    short, long = data.train[0], data.train[-1]
    alone, both = (data.collate(us, np.random.default_rng(4), "full") for us in ([short], [short, long]))
    n = alone.text.shape[1]
    hidden = [batched.decoder(stage.speech.talker.decoder, stage.rows(b, 0))[0][0, :n] for b in (alone, both)]
    assert (hidden[0] - hidden[1]).abs().max() < 1e-5


@torch.no_grad()
def test_only_those_with_a_speaker_have_a_clip(stage):
    data = stage.data
    data.silent = 0.5
    batch = data.collate(data.train[:8], np.random.default_rng(0), "streaming")
    with_speaker = (batch.codec == SPEAKER).any(1)
    assert 0 < with_speaker.sum() < 8 and len(batch.clips) == with_speaker.sum()
    rows, where = stage.rows(batch, 0), torch.where(batch.codec == SPEAKER)
    pad = stage.speech.text_embedding.weight[data.special.text_pad]
    for row, clip in zip(rows[where], batch.clips, strict=True):
        assert (row - pad - stage.speech.speaker_encoder(clip)).abs().max() < 1e-5


def test_the_pair_is_one_and_speaks(pair, stage):
    opened = Pair.open(*pair)
    assert opened.kind == "base" and opened.special.public_languages == ["english"]
    assert opened.predictor.codes == opened.code2wav.codes == 64
    engine = load_engine(*pair, device="cpu")
    speech = engine.speak(SpeechRequest("Hello there.", seed=1, max_frames=5))
    samples = np.concatenate([chunk.samples for chunk in speech])
    assert len(samples) == 1920 * len(np.concatenate([c.codes for c in engine.speak(
        SpeechRequest("Hello there.", seed=1, max_frames=5))])) > 0 and np.isfinite(samples).all()


@torch.no_grad()
def test_the_files_hold_what_was_trained(pair, stage):
    engine = Qwen3TTSEngine.open(*pair, device="cpu", dtype="float32", compiled=False)
    engine.load()
    for part in ("code2wav", "talker", "predictor"):
        loaded = dict(getattr(engine.models, part).named_parameters())
        for name, value in getattr(stage.speech, part).named_parameters():
            # Convolutions are stored in 16 bits whatever the type asked for.
            assert torch.allclose(value, loaded[name].float(), rtol=1e-3, atol=1e-5), f"{part}.{name}"
