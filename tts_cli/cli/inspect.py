"""`tts inspect FILE…`: what a GGUF file holds, from its header alone."""

import json as json_module
import math
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from tts_cli import nano
from tts_cli.errors import ModelFileError, UsageError
from tts_cli.loading import NANO

Files = Annotated[list[str], typer.Argument(
    metavar="FILE...", help="GGUF files, or nano; two are also checked as a pair")]
Tensors = Annotated[bool, typer.Option("--tensors", help="List every tensor", show_default="off")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object", show_default="off")]

_SAMPLING = "general.sampling."
_EXTRA_SAMPLING = "tts_cli.sampling."


def inspect(files: Files, *, tensors: Tensors = False, json: Json = False) -> None:
    """Print what GGUF files hold; of a talker and an mmproj also whether they fit each other."""
    from tts_cli.gguf.file import GGUFFile

    paths = [path for given in files for path in ((nano.TALKER, nano.MMPROJ) if given == NANO else (Path(given),))]
    reports = []
    for path in paths:
        with GGUFFile.open(path) as file:
            reports.append(describe(file, tensors))
    result = {"files": reports}
    if len(paths) == 2:
        result["pair"] = describe_pair(paths, reports)
    if json:
        print(json_module.dumps(result, ensure_ascii=False, indent=2))
    else:
        _print_text(result)
    if not result.get("pair", {"fits": True})["fits"]:
        raise ModelFileError(result["pair"]["reason"])


def describe(file, with_tensors: bool) -> dict:
    """Facts of one file as plain values; None where the file does not say."""
    meta = file.metadata
    types, sizes = Counter(), Counter()
    for tensor in file.tensors.values():
        types[tensor.type.name] += 1
        sizes[tensor.type.name] += tensor.nbytes
    report = {
        "file": str(file.path),
        "bytes": file.path.stat().st_size,
        "architecture": file.architecture,
        "role": role(file),
        "name": meta.get("general.name"),
        "model_type": meta.get("tts_cli.model_type"),
        "model_size": meta.get("tts_cli.model_size"),
        "parameters": sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        "tensors": len(file.tensors),
        "types": {name: {"tensors": types[name], "bytes": sizes[name]} for name in sorted(types)},
    }
    report |= _describe_talker(meta) if report["role"] == "talker" else {}
    report |= _describe_mmproj(file) if report["role"] == "mmproj" else {}
    if with_tensors:
        report["tensor_list"] = [
            {"name": tensor.name, "shape": list(tensor.shape), "type": tensor.type.name, "bytes": tensor.nbytes}
            for tensor in file.tensors.values()]
    return report


def role(file) -> str:
    """What the file is to `tts`: "talker", "mmproj" or "other"."""
    if file.architecture == "qwen3tts":
        return "talker"
    if file.metadata.get("clip.gen.audio.projector_type") == "qwen3tts_gen":
        return "mmproj"
    return "other"


def _describe_talker(meta: dict) -> dict:
    tokens = meta.get("tokenizer.ggml.tokens") or []
    named = [token[2:-2] for token in tokens if token.startswith("<|") and token.endswith("|>")]
    sampling = {key.removeprefix(prefix): value for prefix in (_SAMPLING, _EXTRA_SAMPLING)
                for key, value in meta.items() if key.startswith(prefix)}
    return {
        **{field: meta.get(f"qwen3tts.{key}") for field, key in (
            ("layers", "block_count"), ("hidden", "embedding_length"), ("feed_forward", "feed_forward_length"),
            ("heads", "attention.head_count"), ("kv_heads", "attention.head_count_kv"),
            ("context", "context_length"))},
        "vocabulary": len(tokens),
        "languages": [name.removeprefix("codec_language_") for name in named if name.startswith("codec_language_")],
        "speakers": [name.removeprefix("spk_") for name in named if name.startswith("spk_")],
        "sampling": {key: round(value, 4) if isinstance(value, float) else value for key, value in sampling.items()},
    }


def _describe_mmproj(file) -> dict:
    meta = file.metadata
    return {
        "talker_hidden": meta.get("clip.gen.audio.projection_dim"),
        "predictor_layers": meta.get("clip.gen.audio.block_count"),
        "predictor_hidden": meta.get("clip.gen.audio.embedding_length"),
        "predictor_projection": "a.gen.code.proj_in.weight" in file.tensors,
        "speaker_encoder": bool(meta.get("clip.has_audio_encoder")),
    }


def describe_pair(paths: list[Path], reports: list[dict]) -> dict:
    """Whether two files are one talker and one mmproj that fit each other, and why not."""
    from tts_cli.loading import open_engine

    by_role = {report["role"]: path for report, path in zip(reports, paths, strict=True)}
    if set(by_role) != {"talker", "mmproj"}:
        roles = " and ".join(report["role"] for report in reports)
        return {"fits": False, "reason": f"these are {roles}, not a talker and an mmproj"}
    try:
        open_engine(by_role["talker"], by_role["mmproj"])
    except (ModelFileError, UsageError) as error:
        return {"fits": False, "reason": str(error)}
    return {"fits": True, "reason": None}


def _print_text(result: dict) -> None:
    for report in result["files"]:
        print(report["file"])
        for key, value in report.items():
            if key in ("file", "tensor_list") or value is None or value in ([], {}):
                continue
            print(f"  {key.replace('_', ' '):<22}{_readable(key, value)}")
        for tensor in report.get("tensor_list", ()):
            print(f"  {tensor['name']:<44}{tensor['type']:<8}{tensor['shape']}")
        print()
    if "pair" in result:
        print("pair: fits" if result["pair"]["fits"] else "pair: does not fit")  # the error line says why


def _readable(key: str, value) -> str:
    if key == "bytes":
        return f"{value:,} ({value / 1e6:.1f} MB)"
    if key == "types":
        return ", ".join(f"{name}: {of['tensors']} tensors, {of['bytes'] / 1e6:.1f} MB" for name, of in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {of}" for name, of in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
