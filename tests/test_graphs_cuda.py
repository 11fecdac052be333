"""Graphs on a GPU: the frames of the same functions run eagerly, and of the modules."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_gguf_file import stored, write
from test_graphs import everything, in_turns, opened, planned

from tts_cli.engine import SpeechRequest
from tts_cli.gguf.dequantise import KINDS
from tts_cli.gguf.file import GGUFFile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
def test_graphed_codes_equal_eager_ones_on_cuda(pair, dtype, greedy):
    graphed, eager = (opened(pair, device="cuda", dtype=dtype, graphs=on) for on in (True, False))
    for seed in range(3):
        prompt, options = planned(graphed, seed=seed, greedy=greedy, max_frames=300)
        options = replace(options, min_frames=300)  # beyond the shortest lane
        assert everything(graphed.models, prompt, options)[0] == everything(eager.models, prompt, options)[0]


def test_static_frames_equal_those_of_the_modules_on_cuda(pair):
    engine = opened(pair, device="cuda")
    for greedy, count in ((True, 40), (False, 8)):  # few draws: attention with a mask rounds otherwise than without
        prompt, options = planned(engine, seed=1, greedy=greedy, max_frames=count)
        expected = everything(replace(engine.models, static=None), prompt, options)
        found = everything(engine.models, prompt, options)
        assert (found[0], found[2]) == (expected[0], expected[2])


def test_speeches_in_turn_equal_each_alone_on_cuda(pair):
    engine = opened(pair, device="cuda")
    requests = [SpeechRequest("Hello there.", seed=seed, max_frames=40) for seed in range(3)]
    alone = [np.concatenate([chunk.samples for chunk in engine.speak(request)]) for request in requests]
    going, parts = [engine.speak(request) for request in requests], [[] for _ in requests]
    for _ in range(45):
        for one, part in zip(going, parts, strict=True):
            part.extend(chunk.samples for chunk in (next(one, None),) if chunk is not None)
    for part, expected in zip(parts, alone, strict=True):
        assert np.abs(np.concatenate(part) - expected).max() <= 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_in_shared_lanes_changes_no_code_on_cuda(pair, dtype):
    engine = opened(pair, device="cuda", dtype=dtype)
    runs = []
    for seed in range(5):
        prompt, options = planned(engine, "Hello there. " * (1 + seed), seed=seed, max_frames=30 + 60 * seed)
        runs.append((prompt, replace(options, min_frames=options.max_frames)))  # the last ones outgrow their lanes
    alone = [in_turns(engine.models, [run], [0])[0][0] for run in runs]
    together = [codes for codes, _, _ in in_turns(engine.models, runs, [0, 3, 0, 7, 1])]
    assert together == alone


@pytest.mark.parametrize("kind", sorted(KINDS), ids=lambda kind: kind.name)
def test_weights_are_dequantised_on_cuda_as_on_the_cpu(tmp_path, kind):
    with GGUFFile.open(write(tmp_path / "x.gguf", {"t": (stored(kind), kind)})) as file:
        for dtype in (torch.float32, torch.bfloat16):
            here, there = (torch.empty(2, 12, 512, dtype=dtype, device=device) for device in ("cpu", "cuda"))
            file.read_into("t", here)
            file.read_into("t", there)
            assert torch.equal(here.nan_to_num(), there.cpu().nan_to_num())
