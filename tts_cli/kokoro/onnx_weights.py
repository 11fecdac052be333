"""The int8 ONNX export of Kokoro-82M back to float32 tensors under their published names.

The quantiser kept no names for most weights, but the nodes that use them are called after their modules
(`/decoder/decoder/encode/conv1/Conv_quant`). Weights come folded, without weight norm.
"""

import re
from collections.abc import Iterator

import numpy as np

_GATES = (0, 2, 3, 1)  # ONNX stacks i, o, f, c; PyTorch i, f, g (ONNX's c), o
_OF_THE_ENCODER = ("bert", "bert_encoder", "predictor", "text_encoder")
# The twelve unrolled passes through ALBERT's one layer are numbered, `query_3`.
_PASS = re.compile(r"(?<=query|value|dense)_\d+|(?<=key|ffn)_\d+|(?<=ffn_output)_\d+|(?<=LayerNorm|attention)_\d+")
_NAMED = re.compile(r"(?:encoder|decoder)\."
                    r"(.*\.(?:bias|gamma|beta|alpha[12]\.\d|(?:full_layer_layer_norm|LayerNorm)\.weight))")


def read_onnx(model: bytes) -> dict[str, np.ndarray]:
    """The tensors of a serialised model, float32. The bytes must be those of the export: nothing is checked here."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(model).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}

    def values(name: str) -> np.ndarray:
        return numpy_helper.to_array(stored[name])

    tensors = {}
    for node in graph.node:
        if any(name in stored for name in node.input) and "istft" not in node.name:
            for name, array in _weights(node, stored, values):
                if name not in tensors:
                    tensors[name] = np.ascontiguousarray(array, np.float32)
    for name in stored:
        if match := _NAMED.fullmatch(name):
            tensors[match[1]] = values(name)
    return tensors


def _weights(node, stored, values) -> Iterator[tuple[str, np.ndarray]]:
    inputs, path = node.input, _module(node.name)
    if node.op_type == "MatMulInteger":  # [inputs, outputs], a scale for each column
        yield f"{path}.weight", (_quantised(values, inputs[1], inputs[3])).T
    elif node.op_type == "ConvInteger":
        yield f"{path}.weight", _quantised(values, inputs[1], inputs[3])
    elif node.op_type in ("Conv", "ConvTranspose"):
        yield f"{path}.weight", values(inputs[1])
    elif node.op_type == "MatMul" and inputs[1] in stored:
        yield f"{path}.weight", values(inputs[1]).T
    elif node.op_type == "Gather" and inputs[0].endswith(".weight_quantized"):  # embeddings; their zero points are 0
        name = inputs[0].removesuffix("_quantized")
        yield name.removeprefix("encoder."), values(inputs[0]).astype(np.float32) * values(f"{name}_scale")
    elif node.op_type == "DynamicQuantizeLSTM":
        yield from _lstm(path, values, inputs)


def _quantised(values, name: str, zero_point: str) -> np.ndarray:
    scale = values(name.removesuffix("_quantized") + "_scale")
    return (values(name).astype(np.float32) - values(zero_point).astype(np.float32)) * scale


def _lstm(path: str, values, inputs) -> Iterator[tuple[str, np.ndarray]]:
    """W [2, inputs, 4H], R [2, H, 4H], with a scale for each direction and zero points of 0; B [2, 8H] float."""
    def gates(array: np.ndarray) -> np.ndarray:
        return array.reshape(4, -1, *array.shape[1:])[list(_GATES)].reshape(array.shape)

    bias = values(inputs[3])
    for direction, suffix in enumerate(("", "_reverse")):
        for name, index, scale in (("weight_ih", 1, 8), ("weight_hh", 2, 10)):
            array = values(inputs[index])[direction].astype(np.float32) * values(inputs[scale])[direction]
            yield f"{path}.{name}_l0{suffix}", gates(array.T)
        for name, half in zip(("bias_ih", "bias_hh"), np.split(bias[direction], 2), strict=True):
            yield f"{path}.{name}_l0{suffix}", gates(half)


def _module(node: str) -> str:
    """`/encoder/F0.0/conv1/Conv_quant` -> `predictor.F0.0.conv1`; `cnn.0/cnn.0.0` is one step."""
    wrapper, *steps = node.strip("/").split("/")[:-1] or [""]
    if wrapper == "encoder" and steps and steps[0] not in _OF_THE_ENCODER:
        steps = ["predictor", *steps]
    path: list[str] = []
    for step in steps:
        if path and (step == path[-1] or step.startswith(path[-1] + ".")):
            path.pop()
        path.append(step)
    return _PASS.sub("", ".".join(path))
