"""The form of talker and code predictor that CUDA graphs hold makes the very frames that the modules make.

Without a GPU the same functions run eagerly, and recorded: what make_fx replays is, like a graph, blind to everything
on the host, so a number or a tensor that should have been an argument gives itself away.
"""

import copy
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from cli_tools import tts
from factory import tiny_pair
from test_parity import CASES, GOLDEN, NOTES
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from tts_cli.engine import CancelToken, SpeechRequest
from tts_cli.errors import TtsError
from tts_cli.qwen3tts import graphs, static_steps, vocoder
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.generate import frames, speech
from tts_cli.qwen3tts.graphs import Graphed
from tts_cli.qwen3tts.sampling import SamplingOptions
from tts_cli.qwen3tts.static_steps import Lanes, StaticModels
from tts_cli.voices import Voice

CPU = torch.device("cpu")
LOAD = Qwen3TTSEngine.load


def traced(function, inputs):
    """What `graphs.capture` does, without a GPU."""
    recorded = make_fx(function)(*inputs)
    outputs = [output.clone() for output in recorded(*inputs)]

    def replay():
        for place, value in zip(outputs, recorded(*inputs), strict=True):
            place.copy_(value)
    return replay, outputs


def opened(files, **options):
    engine = Qwen3TTSEngine.open(*files, **({"device": "cpu", "dtype": "float32", "compiled": False} | options))
    engine.load()
    return engine


@pytest.fixture(scope="module")
def engines(pair, pair_equal):
    return {"base": opened(pair), "equal": opened(pair_equal)}


@pytest.fixture(scope="module")
def small(engines):
    """The engines with four books rather than 16: less to compute, and fewer draws to meet a tie with rounding."""
    small = {}
    for name, engine in engines.items():
        predictor = copy.deepcopy(engine.models.predictor)
        for table in ("heads", "embeddings"):
            setattr(predictor, table, torch.nn.Parameter(getattr(predictor, table)[:3].clone(), requires_grad=False))
        small[name] = copy.copy(engine)
        small[name].models = replace(engine.models, predictor=predictor)
    return small


def static(models, graphs=False):
    """The models with their static form."""
    return replace(models, static=StaticModels(models.talker, models.predictor, CPU, graphs))


def planned(engine, text="Hello there, my friend.", **options):
    plan = engine.plan(SpeechRequest(text, **options), options.get("seed", 0))
    return engine.embed(plan.prompt), plan.options


def everything(models, prompt, options, cancel=None):
    """Codes and hidden states of all frames, and how it ended."""
    *made, reason = frames(models, prompt, options, cancel or CancelToken())
    return [frame.codes.tolist() for frame in made], [frame.hidden for frame in made], reason


def assert_same(found, expected):
    assert found[0] == expected[0] and found[2] == expected[2]
    for mine, want in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(mine, want, rtol=0, atol=2e-5)


# ---- the loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_greedy_frames_equal_the_reference(engines, case):
    note, engine = NOTES[case], engines[case.split("/")[0]]
    expected = GOLDEN[f"{case}/codes"]
    voice = Voice("reference", GOLDEN[f"{case.split('/')[0]}/xvector"]) if note["xvector"] else None
    prompt, options = planned(engine, note["text"], language=note["language"], text_mode=note["text_mode"],
                              voice=voice, repeat_penalty=note["penalty"], greedy=True,
                              max_frames=len(expected) + note["eos"])
    codes, _, reason = everything(static(engine.models), prompt, options)
    np.testing.assert_array_equal(codes, expected)
    assert reason == ("eos" if note["eos"] else "limit")


@pytest.mark.parametrize("chances", [{}, {"top_p": 0.8, "temperature": 0.7, "sub_top_p": 0.6, "top_k": 0},
                                     {"temperature": 5.0, "repeat_penalty": 1.3}, {"greedy": True}], ids=str)
@pytest.mark.parametrize("name", ["base", "equal"])
def test_frames_equal_those_of_the_modules(small, name, chances):
    """Sampled and greedy, of any length, with a voice's prefix read before and without."""
    engine = small[name]
    models = static(engine.models)
    for seed in range(4):
        prompt, options = planned(engine, seed=seed, max_frames=(1, 2, 9, 12)[seed], **chances)
        if seed % 2:
            prompt = replace(prompt, prefix=engine._prefix(prompt.rows[:4]))
        assert_same(everything(models, prompt, options), everything(engine.models, prompt, options))


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancelling_ends_after_the_same_frame(small, after):
    engine = small["base"]
    prompt, options = planned(engine, seed=1, max_frames=8)

    def run(models):
        cancel, made = CancelToken(), []
        if after == 0:
            cancel.cancel()
        for item in frames(models, prompt, options, cancel):
            made.append(item if isinstance(item, str) else item.codes.tolist())
            if len(made) == after:
                cancel.cancel()
        return made
    expected = run(engine.models)
    assert run(static(engine.models)) == expected and expected[after:] == ["cancelled"]


@pytest.mark.parametrize("place", [0, 1, 6])
def test_eos_ends_after_the_same_frame(small, place):
    """With the limit behind it, at it and before it; the frame that was begun too early is never seen."""
    engine = small["base"]
    models = static(engine.models)
    prompt, options = planned(engine, seed=3, max_frames=9)
    codes = everything(engine.models, prompt, replace(options, min_frames=9))[0]
    options = replace(options, eos=codes[place][0])  # what is drawn there ends the speech
    assert codes[place][0] not in [code[0] for code in codes[:place]]
    for limit, reason in ((place + 2, "eos"), (place + 1, "eos"), (place, "limit")):
        if limit:
            found = everything(models, prompt, replace(options, max_frames=limit))
            assert found[0] == codes[:place] and found[2] == reason
            assert_same(found, everything(engine.models, prompt, replace(options, max_frames=limit)))


def test_utterances_in_turn_equal_each_alone(small):
    engine = small["base"]
    models = static(engine.models)
    runs = [planned(engine, text, seed=seed, max_frames=8)
            for seed, text in enumerate(("One.", "Two, and more.", "Three: the longest of them all."))]
    alone = [everything(engine.models, *run) for run in runs]
    going = [frames(models, *run, CancelToken()) for run in runs]
    made = [[] for _ in runs]
    for _ in range(10):
        for utterance, items in zip(going, made, strict=True):
            items.extend(item for item in (next(utterance, None),) if item is not None)
    for items, expected in zip(made, alone, strict=True):
        *found, reason = items
        assert_same(([frame.codes.tolist() for frame in found], [frame.hidden for frame in found], reason), expected)
    lanes = [one for sets in models.static._lanes.values() for one in sets]
    assert len(lanes) == 1 and lanes[0].is_free
    assert_same(everything(models, *runs[0]), alone[0])
    assert [one for sets in models.static._lanes.values() for one in sets] == lanes  # used again, and given back


def in_turns(models, runs, starts):
    """What `everything` gives for each of several utterances that begin at those turns and get a frame at each."""
    going, made, turn = {}, {i: [] for i in range(len(runs))}, 0
    while turn <= max(starts) or going:
        going |= {i: frames(models, *runs[i], CancelToken(), in_turns=True)
                  for i, start in enumerate(starts) if start == turn}
        for i, items in list(going.items()):
            made[i].append(next(items))
            if isinstance(made[i][-1], str):
                del going[i]
        turn += 1
    return [([frame.codes.tolist() for frame in found], [frame.hidden for frame in found], reason)
            for *found, reason in made.values()]


@pytest.mark.parametrize("captured", [False, True])
def test_utterances_that_share_lanes_equal_each_alone(small, monkeypatch, captured):
    """Two sets of options, so two sets of lanes; one utterance outgrows its lane, and another takes a lane left."""
    monkeypatch.setattr(graphs, "capture", traced)
    monkeypatch.setattr(static_steps, "ROWS", 3)
    monkeypatch.setattr(static_steps, "SHORTEST_LANE", 16)
    engine = small["base"]
    models, calls = static(engine.models, captured), []
    predict = Lanes.predict_frames
    monkeypatch.setattr(Lanes, "predict_frames", lambda lanes, begun: (calls.append(len(begun)), predict(lanes, begun)))
    runs = []
    for seed, frames_ in enumerate((6, 24, 3, 9, 5, 7)):
        prompt, options = planned(engine, "One. " * (1 + seed % 3), seed=seed, max_frames=frames_,
                                  **({"temperature": 1.3} if seed == 4 else {}))
        runs.append((prompt, replace(options, min_frames=frames_)))
    for found, run in zip(in_turns(models, runs, (0, 0, 2, 3, 1, 6)), runs, strict=True):
        assert_same(found, everything(engine.models, *run))
    assert len(calls) < 50 and max(calls) == 3  # 54 frames
    assert all(one.is_free for sets in models.static._lanes.values() for one in sets)
    assert all(len(sets) == 1 for sets in models.static._lanes.values())
    assert {rows for rows, _ in models.static._lanes} == {3} and len(models.static._lanes) >= 2


def test_a_pass_that_fails_ends_all_it_was_for(small, monkeypatch):
    engine = small["base"]
    models = static(engine.models)
    runs = [planned(engine, "One and two.", seed=seed, max_frames=8) for seed in range(3)]
    going = [frames(models, *run, CancelToken(), in_turns=True) for run in runs[:2]]
    for utterance in going:
        next(utterance)

    def fault(*arguments):
        raise MemoryError
    with monkeypatch.context() as patch:
        patch.setattr(Lanes, "predict_frames", fault)
        for utterance in going:
            with pytest.raises(MemoryError):
                list(utterance)
    (lanes,) = [one for sets in models.static._lanes.values() for one in sets]
    assert lanes.is_free
    assert_same(everything(models, *runs[2]), everything(engine.models, *runs[2]))


def test_lanes_left_in_the_midst_disturb_nobody(small, monkeypatch):
    monkeypatch.setattr(static_steps, "ROWS", 2)
    engine = small["base"]
    models = static(engine.models)
    runs = [planned(engine, "One and two.", seed=seed, max_frames=8) for seed in range(3)]
    runs = [(prompt, replace(options, min_frames=8)) for prompt, options in runs]
    kept, left = (frames(models, *run, CancelToken(), in_turns=True) for run in runs[:2])
    made = [next(kept), next(left), next(kept), next(left)][::2]
    left.close()
    third = frames(models, *runs[2], CancelToken(), in_turns=True)
    others = [next(third)]
    while len(others) < 9:
        made.append(next(kept, None))
        others.append(next(third))
    for items, run in ((made, runs[0]), (others, runs[2])):
        *found, reason = [item for item in items if item is not None]
        assert_same(([frame.codes.tolist() for frame in found], [frame.hidden for frame in found], reason),
                    everything(engine.models, *run))


def test_what_was_recorded_makes_the_same_frames(small, monkeypatch):
    """Of utterances that differ in everything a recording must not hold."""
    monkeypatch.setattr(graphs, "capture", traced)
    monkeypatch.setattr(static_steps, "SHORTEST_LANE", 32)
    engine = small["base"]
    models, recorded = engine.models, static(engine.models, graphs=True)
    for seed, text in enumerate(("One.", "Two, and more.", "Three: the longest of them all, which ends last.")):
        prompt, options = planned(engine, text, seed=seed, max_frames=30)
        options = replace(options, min_frames=(2, 12, 30)[seed])
        assert_same(everything(recorded, prompt, options), everything(models, prompt, options))
    assert set(recorded.static._lanes) == {(1, 32), (1, 64)}


def test_an_utterance_outgrows_its_lane(small, monkeypatch):
    monkeypatch.setattr(static_steps, "SHORTEST_LANE", 8)
    engine = small["base"]
    prompt, options = planned(engine, "A b.", seed=2, max_frames=40, repeat_penalty=1.0)
    models = static(engine.models)
    expected = everything(engine.models, prompt, replace(options, min_frames=40))
    assert len(expected[0]) == 40
    assert_same(everything(models, prompt, replace(options, min_frames=40)), expected)
    assert len(models.static._lanes) >= 3 and all(one.is_free for (one,) in models.static._lanes.values())


def test_an_abandoned_utterance_gives_its_lane_back(small):
    engine = small["base"]
    models = static(engine.models)
    utterance = frames(models, *planned(engine, seed=1, max_frames=8), CancelToken())
    next(utterance)
    utterance.close()
    assert [one.is_free for sets in models.static._lanes.values() for one in sets] == [True]


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
def test_numbers_that_are_none_are_reported(tmp_path, greedy):
    engine = opened(tiny_pair(tmp_path, talker_edits={"output_norm.weight": np.full(64, np.nan, np.float32)}))
    with pytest.raises(TtsError, match="talker's activations are not numbers"):
        everything(static(engine.models), *planned(engine, greedy=greedy, max_frames=4))


# ---- the functions --------------------------------------------------------------------------------------------------


class NoHostReads(TorchDispatchMode):
    """Refuses what would wait for the device, and with that break a capture."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function._schema.name
        assert name not in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select"), name
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("options", [SamplingOptions(), SamplingOptions(0.7, 30, 0.8), SamplingOptions(0.0)], ids=str)
@pytest.mark.parametrize("name", ["base", "equal"])
def test_nothing_is_read_on_the_host(engines, name, options):
    engine = engines[name]
    shared = StaticModels(engine.models.talker, engine.models.predictor, CPU, False)
    prompt, loop = planned(engine)
    lanes = Lanes(shared, 1, 64)
    seen = torch.zeros(1, len(engine.models.talker.head), dtype=torch.bool)
    with torch.inference_mode(), NoHostReads():
        code_frame = shared.code_frame(replace(loop, talker=options, predictor=options), 1)
        codes, _ = code_frame(prompt.pad[None], seen, seen, torch.full((1, 16), .5))
        hidden, position = lanes.step(codes, prompt.pad[None], torch.tensor([5]))
    assert codes.shape == (1, 16) and hidden.isfinite().all() and position.tolist() == [6]


def test_the_guard_against_reads_would_see_one():
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoHostReads():
        torch.zeros(3)[torch.tensor(1)]


def test_functions_are_kept_by_what_is_captured_in_them(engines):
    engine = engines["base"]
    shared = StaticModels(engine.models.talker, engine.models.predictor, CPU, False)
    _, options = planned(engine)
    first = shared.code_frame(options, 1)
    assert shared.code_frame(replace(options, seed=9, max_frames=3), 1) is first
    assert shared.code_frame(replace(options, repeat_penalty=1.7), 1) is not first
    assert shared.code_frame(options, 2) is not first
    for k in range(static_steps.KEPT_OPTIONS):
        shared.code_frame(replace(options, talker=SamplingOptions(top_k=k)), 1)
    assert shared.code_frame(options, 1) is not first


# ---- the helper -----------------------------------------------------------------------------------------------------


def double(x, y):
    return x * 2, y + 1


@pytest.mark.parametrize("on", [True, False])
def test_a_function_is_the_same_captured(on, monkeypatch):
    monkeypatch.setattr(graphs, "capture", traced)
    graphed = Graphed(double, on)
    first = graphed(torch.arange(3), torch.zeros(2))
    second = graphed(torch.arange(3) + 5, torch.ones(2))
    assert [x.tolist() for x in first] == [[0, 2, 4], [1, 1]]  # not overwritten by the second
    assert [x.tolist() for x in second] == [[10, 12, 14], [2, 2]]


def test_it_runs_only_once_when_captured(monkeypatch):
    monkeypatch.setattr(graphs, "capture", traced)
    calls = []
    graphed = Graphed(lambda x: calls.append(1) or (x + 1,), True)
    assert [int(graphed(torch.tensor([n]))[0]) for n in range(5)] == [1, 2, 3, 4, 5] and len(calls) == 1


@pytest.mark.parametrize("wrong", [torch.zeros(1), torch.zeros(3), torch.zeros(2, dtype=torch.float64)])
def test_other_shapes_than_captured_are_refused(wrong, monkeypatch):
    monkeypatch.setattr(graphs, "capture", traced)
    graphed = Graphed(double, True)
    graphed(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match=r"captured for torch.float32 \(2,\)"):
        graphed(torch.zeros(2), wrong)


@pytest.mark.parametrize("graphs", [True, False])
def test_the_switch_reaches_the_engine(pair, graphs, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(Qwen3TTSEngine, "load", lambda engine: opened.append(engine) or LOAD(engine))
    tts("-m", pair[0], "-p", "Hello.", "-n", "1", "-o", tmp_path / "a.wav", *([] if graphs else ["--no-graphs"]))
    assert [engine.graphs for engine in opened][:1] == [graphs]


# ---- sound ----------------------------------------------------------------------------------------------------------


@contextmanager
def late(monkeypatch, calls: int):
    """Chunks that are ready only when asked for the `calls`-th time."""
    asked = {}

    def ready(making):
        asked[id(making)] = asked.get(id(making), 0) + 1
        return asked[id(making)] >= calls
    with monkeypatch.context() as patch:
        patch.setattr(vocoder.Making, "ready", property(ready))
        yield


@pytest.mark.parametrize("calls", [2, 3, 1000])
def test_late_chunks_keep_their_order(engines, monkeypatch, calls):
    engine = engines["base"]
    prompt, options = planned(engine, seed=1, max_frames=11)
    options = replace(options, min_frames=11)
    expected = list(speech(engine.models, prompt, options, (1, 2), CancelToken()))
    with late(monkeypatch, calls):
        found = list(speech(static(engine.models), prompt, options, (1, 2), CancelToken()))
    assert len(found) == len(expected) == 7
    for mine, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.codes, want.codes)
        assert np.abs(mine.samples - want.samples).max(initial=0) <= 1e-5 and mine.finish_reason == want.finish_reason


def test_a_cancelled_utterance_drops_what_is_being_made(engines, monkeypatch):
    engine, cancel = engines["base"], CancelToken()
    prompt, options = planned(engine, seed=1, max_frames=30)
    with late(monkeypatch, 3):
        chunks = speech(static(engine.models), prompt, replace(options, min_frames=30), (1,), cancel)
        assert len(next(chunks).codes) == 1
        cancel.cancel()
        rest = list(chunks)
    assert [(len(chunk.codes), chunk.finish_reason) for chunk in rest] == [(0, "cancelled")]
