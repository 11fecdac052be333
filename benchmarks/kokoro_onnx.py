"""A float32 graph from Kokoro-82M's dynamically quantised one: the same weights and no rounding of activations.

    python benchmarks/kokoro_onnx.py kokoro-v1.0.int8.onnx kokoro-v1.0.float32.onnx

Needs `onnx`. Each integer product becomes the float one whose result the graph scales it to.
"""

import sys
from collections import defaultdict

import numpy as np
import onnx
from onnx import helper, numpy_helper


def float_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    values = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    users = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            users[name].append(node)
    source = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "DynamicQuantizeLinear"}
    gone, made, weights = {}, {}, {}

    def dequantise(quantised: str, zero: str, axis: int | None = None) -> str:
        q, z, scale = (values[name].astype(np.float32) for name in (quantised, zero, quantised[:-9] + "scale"))
        if axis is not None and scale.ndim:
            shape = [1] * q.ndim
            shape[axis] = -1
            scale, z = scale.reshape(shape), z.reshape(shape) if z.ndim else z
        name = quantised + "_float"
        weights[name] = (q - z) * scale
        return name

    for node in graph.node:
        if node.op_type in ("ConvInteger", "MatMulInteger"):
            conv = node.op_type == "ConvInteger"
            chain, bias = [], []
            last = node
            while last.op_type != "Mul":  # (add a rounded bias,) cast, scale
                (last,) = users[last.output[0]]
                chain.append(last)
                if last.op_type == "Add":
                    bias = [None]
            if bias:
                bias = [last.input[1].removesuffix("_scale")]
            weight = dequantise(node.input[1], node.input[3], None if conv else 1)
            made[id(node)] = helper.make_node("Conv" if conv else "MatMul", [source[node.input[0]], weight, *bias],
                                              [last.output[0]], node.name)
            made[id(node)].attribute.extend(node.attribute)
            gone.update((id(other), other) for other in chain)
        elif node.op_type == "DynamicQuantizeLSTM":
            x, w, r, bias, lengths, h, c, p, _, w_zero, _, r_zero = node.input
            inputs = [x, *(dequantise(name, zero, 0) for name, zero in ((w, w_zero), (r, r_zero)))]
            for name in inputs[1:]:
                weights[name] = np.ascontiguousarray(weights[name].transpose(0, 2, 1))
            made[id(node)] = helper.make_node("LSTM", [*inputs, bias, lengths, h, c, p], node.output, node.name)
            made[id(node)].attribute.extend(node.attribute)
    nodes = [made.get(id(node), node) for node in graph.node if id(node) not in gone]
    wanted = {output.name for output in graph.output}
    for node in reversed(nodes):  # what only the removed nodes read goes too
        if wanted.intersection(node.output):
            wanted.update(node.input)
    kept = [node for node in nodes if wanted.intersection(node.output)]
    initializers = [i for i in graph.initializer if i.name in wanted]
    initializers += [numpy_helper.from_array(array, name) for name, array in weights.items()]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(kept)
    graph.initializer.extend(initializers)
    return model


if __name__ == "__main__":
    onnx.save(float_graph(onnx.load(sys.argv[1])), sys.argv[2])
