"""A small random Kokoro checkpoint folder, under our own parameter names, which the loader takes as they are."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from tts_cli.kokoro.builtin import PACKS
from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.model import Kokoro

RAW = {
    "n_token": 178, "hidden_dim": 32, "style_dim": 16, "n_layer": 1, "max_dur": 8, "text_encoder_kernel_size": 5,
    "decoder_dim": 32, "asr_res_dim": 8,
    "plbert": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 512,
               "num_hidden_layers": 2, "embedding_size": 16},
    "istftnet": {"upsample_rates": [10, 6], "upsample_kernel_sizes": [20, 12], "upsample_initial_channel": 32,
                 "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]], "gen_istft_n_fft": 20,
                 "gen_istft_hop_size": 5},
    "vocab": json.loads((PACKS / "config.json").read_text(encoding="utf-8"))["vocab"],
}


def small_config(**edits) -> KokoroConfig:
    return KokoroConfig.from_dict(RAW | edits)


def small_state(config: KokoroConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        shapes = {name: like.shape for name, like in Kokoro(config).state_dict().items()}
    random = torch.Generator().manual_seed(seed)
    return {name: 0.2 * torch.randn(shape, generator=random) + ("alpha" in name) for name, shape in shapes.items()}


def kokoro_folder(folder: Path, *, kind: str = "safetensors", voices: tuple[str, ...] = ("af_tiny", "bm_small"),
                  state: dict[str, torch.Tensor] | None = None, **edits) -> Path:
    """Write config.json, kokoro-v1_0.safetensors or .pth, and voices/*.pt into `folder`; returns it."""
    (folder / "voices").mkdir(parents=True, exist_ok=True)
    config = small_config(**edits)
    (folder / "config.json").write_text(json.dumps(RAW | edits), encoding="utf-8")
    state = small_state(config) if state is None else state
    if kind == "pth":
        torch.save(state, folder / "kokoro-v1_0.pth")
    else:
        save_file(state, folder / "kokoro-v1_0.safetensors")
    for number, name in enumerate(voices):
        torch.save(torch.from_numpy(small_pack(number)), folder / "voices" / f"{name}.pt")
    return folder


def small_pack(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(510, 1, 32)).astype(np.float32)
