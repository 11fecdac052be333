"""Read converted GGUF files whole, and damage checkpoint folders, for the tests of conversion."""

import json
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file, save_file


class File:
    """A GGUF file as the gguf package reads it."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self._fields = {k: f for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        self._tensors = {t.name: t for t in reader.tensors}
        self.kinds = {key: " ".join(t.name for t in field.types) for key, field in self._fields.items()}
        self.types = {t.name: t.tensor_type.name for t in reader.tensors}
        self.shapes = {t.name: [int(n) for n in reversed(t.shape)] for t in reader.tensors}

    @cached_property
    def metadata(self) -> dict:
        return {key: field.contents() for key, field in self._fields.items()}

    @cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        return {name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(self.shapes[name])
                for name, t in self._tensors.items()}


def files(paths) -> tuple[File, File]:
    return File(paths[0]), File(paths[1])


def edit_json(path: Path, **changes) -> None:
    """Set top-level or dotted fields; None removes one."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        place = config
        for name in parents:
            place = place[name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def edit_weights(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
