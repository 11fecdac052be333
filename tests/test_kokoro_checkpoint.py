"""Published tensor names become the model's parameters."""

import json
from pathlib import Path

import pytest
import torch

from tts_cli.kokoro.checkpoint import fold, state_from_checkpoint
from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.model import Kokoro

# Names and shapes of the 548 tensors of the published kokoro-v1_0.pth, without `module.`.
PUBLISHED = json.loads((Path(__file__).parent / "data" / "kokoro_tensors.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def parameters():
    with torch.device("meta"):
        return Kokoro(KokoroConfig()).state_dict()


def nested(tensors):
    """As `torch.save` wrote them: a dict per part, whose keys start with `module.`."""
    parts = {}
    for name, tensor in tensors.items():
        part, rest = name.split(".", 1)
        parts.setdefault(part, {})[f"module.{rest}"] = tensor
    return parts


@pytest.mark.parametrize("layout", [dict, nested])
def test_every_published_tensor_has_its_place_and_none_is_left(parameters, layout):
    tensors = {name: torch.ones(1).expand(shape) for name, shape in PUBLISHED.items()}
    state = state_from_checkpoint(layout(tensors))
    assert len(tensors) == 548
    assert {name: tensor.shape for name, tensor in state.items()} == {n: p.shape for n, p in parameters.items()}
    kernels = [name for name, like in parameters.items() if like.dim() == 3 and "doubling" not in name]
    for name in kernels:
        order, expected = ([step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]
                           for t in (state[name], parameters[name]))
        assert order == expected, name


def test_channels_last_kernels_are_turned(parameters):
    tensors = {name: torch.ones(1).expand(shape) for name, shape in PUBLISHED.items()}
    turned = {name: t.transpose(1, 2) if name.endswith(("weight_v", "convs.0.weight", "convs.1.weight", "proj.weight"))
              and t.dim() == 3 else t for name, t in tensors.items()}
    assert sum(a.shape != b.shape for a, b in zip(tensors.values(), turned.values(), strict=True)) > 80
    state = state_from_checkpoint(turned)
    assert {name: tensor.shape for name, tensor in state.items()} == {n: p.shape for n, p in parameters.items()}
    weight = torch.arange(514 * 1024 * 3.0).view(1024, 514, 3)
    plain, mlx = (state_from_checkpoint({"decoder.encode.conv1.weight_v": w, "decoder.encode.conv1.weight_g":
                  torch.ones(1024, 1, 1)})["decoder.encode.conv1.weight"] for w in (weight, weight.transpose(1, 2)))
    assert torch.equal(plain, mlx)


def test_weight_norm_is_folded_and_a_row_of_zeros_stays_zero():
    direction = torch.tensor([[[3.0, 0], [0, 4]], [[0, 0], [0, 0]], [[1, 1], [1, 1]]])
    folded = fold(torch.tensor([10.0, 7, 0]).view(3, 1, 1), direction)
    assert torch.equal(folded[0], torch.tensor([[6.0, 0], [0, 8]]))
    assert (folded[1:] == 0).all()


@pytest.mark.parametrize("names", [("weight_g", "weight_v"),
                                   ("parametrizations.weight.original0", "parametrizations.weight.original1")])
def test_both_names_of_weight_norm_and_folded_weights_give_the_same(names):
    scale, direction = torch.tensor(2.0).view(1, 1, 1), torch.tensor([[[2.0, 1, 2]]])
    state = state_from_checkpoint({f"decoder.F0_conv.{names[0]}": scale, f"decoder.F0_conv.{names[1]}": direction})
    assert state.keys() == {"decoder.f0_down.weight"}
    already = state_from_checkpoint({"decoder.F0_conv.weight": direction * 2 / 3})
    assert torch.allclose(state["decoder.f0_down.weight"], already["decoder.f0_down.weight"])


def test_half_precision_becomes_float32_and_snake_s_alpha_a_vector():
    alpha = torch.rand(1, 256, 1).half()
    state = state_from_checkpoint({"decoder.generator.resblocks.4.alpha2.1": alpha[:, :128],
                                   "decoder.generator.noise_res.0.alpha1.2": alpha})
    assert torch.equal(state["generator.stages.1.blocks.1.1.alpha2"], alpha[0, :128, 0].float())
    assert torch.equal(state["generator.stages.0.source_block.2.alpha1"], alpha.flatten().float())


def test_what_the_forward_pass_never_reads_is_left_out_and_unknown_names_come_back():
    norm = "decoder.encode.norm1.norm"
    unused = {"bert.pooler.weight": torch.ones(768, 768), "bert.embeddings.position_ids": torch.arange(512),
              f"{norm}.weight": torch.ones(514), f"{norm}.bias": torch.zeros(514)}
    assert state_from_checkpoint(unused) == {}
    scaled = state_from_checkpoint({f"{norm}.weight": torch.full((514,), 2.0), "vocoder.weight": torch.ones(1)})
    assert scaled.keys() == {f"{norm}.weight", "vocoder.weight"}  # for the caller to refuse
