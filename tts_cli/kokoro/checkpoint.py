"""From the published tensor names of Kokoro-82M to the parameters of `Kokoro`: names, weight norm, memory order."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.layers import Conv, Upsample, kernel_layout
from tts_cli.kokoro.model import Kokoro

# Applied one after the other to the start of a name.
_PREFIXES = {
    "bert.embeddings.word_embeddings.": "bert.words.",
    "bert.embeddings.position_embeddings.": "bert.positions.",
    "bert.embeddings.token_type_embeddings.": "bert.types.",
    "bert.embeddings.LayerNorm.": "bert.norm.",
    "bert.encoder.embedding_hidden_mapping_in.": "bert.expand.",
    "bert.encoder.albert_layer_groups.0.albert_layers.0.": "bert.layer.",
    "bert.layer.attention.dense.": "bert.layer.attention_out.",
    "bert.layer.attention.LayerNorm.": "bert.layer.attention_norm.",
    "bert.layer.attention.": "bert.layer.",
    "bert.layer.ffn.": "bert.layer.ffn_in.",
    "bert.layer.ffn_output.": "bert.layer.ffn_out.",
    "bert.layer.full_layer_layer_norm.": "bert.layer.ffn_norm.",
    "bert_encoder.": "bert_projection.",
    "predictor.": "prosody.",
    "prosody.duration_proj.linear_layer.": "prosody.duration.",
    "prosody.F0_proj.": "prosody.f0.out.",
    "prosody.N_proj.": "prosody.energy.out.",
    "prosody.F0.": "prosody.f0.blocks.",
    "prosody.N.": "prosody.energy.blocks.",
    "decoder.F0_conv.": "decoder.f0_down.",
    "decoder.N_conv.": "decoder.energy_down.",
    "decoder.asr_res.0.": "decoder.asr_residual.",
    "decoder.decode.": "decoder.blocks.",
    "decoder.generator.m_source.l_linear.": "source.mix.",
    "decoder.generator.conv_post.": "generator.post.",
    "decoder.generator.": "generator.",
}
# Applied anywhere, after the prefixes.
_PATTERNS = [(re.compile(pattern), target) for pattern, target in (
    (r"^text_encoder\.cnn\.(\d+)\.0\.", r"text_encoder.convs.\1."),
    (r"^text_encoder\.cnn\.(\d+)\.1\.gamma$", r"text_encoder.norms.\1.weight"),
    (r"^text_encoder\.cnn\.(\d+)\.1\.beta$", r"text_encoder.norms.\1.bias"),
    (r"^generator\.ups\.(\d+)\.", r"generator.stages.\1.up."),
    (r"^generator\.noise_convs\.(\d+)\.", r"generator.stages.\1.source_conv."),
    (r"^generator\.noise_res\.(\d+)\.", r"generator.stages.\1.source_block."),
    (r"\.adain([12])\.(\d+)\.", r".\2.norm\1."),
    (r"\.convs([12])\.(\d+)\.", r".\2.conv\1."),
    (r"\.alpha([12])\.(\d+)$", r".\2.alpha\1"),
    (r"\.pool\.", ".doubling."),
    (r"\.conv1x1\.", ".shortcut."),
    (r"\.parametrizations\.weight\.original0$", ".weight_g"),
    (r"\.parametrizations\.weight\.original1$", ".weight_v"),
)]
_UNUSED = re.compile(r"^bert\.pooler\.|position_ids$")
_INSTANCE_NORM = re.compile(r"\.norm\d\.norm\.(weight|bias)$")


def state_from_checkpoint(tensors: Mapping[str, Tensor | Mapping[str, Tensor]],
                          config: KokoroConfig | None = None) -> dict[str, Tensor]:
    """Float32 tensors under the names of `Kokoro(config).state_dict()`, with its memory order.

    Takes flat names or one level of nesting, with or without `module.`. Weight norm is folded (a row of zeros gives
    zeros), kernels stored channels-last are turned. What the forward pass never reads is left out: the BERT pooler,
    position ids, and the scale and shift of instance norms where they are 1 and 0. A name that is not known comes
    back as it is; the caller compares names and shapes with the model's.
    """
    config = config or KokoroConfig()
    state = {}
    for name, tensor in _flat(tensors).items():
        name = _rename(name, len(config.istftnet.block_kernels))
        if not _UNUSED.search(name) and not _is_identity(name, tensor):
            state[name] = tensor.detach().float()
    with torch.device("meta"):
        modules = dict(Kokoro(config).named_modules())
    for path, module in modules.items():
        for parameter, like in module.named_parameters(recurse=False):
            name = f"{path}.{parameter}"
            pair = f"{name}_g", f"{name}_v"
            if all(part in state for part in pair):
                scale, direction = (state.pop(part) for part in pair)
                state[name] = fold(scale, _turned(direction, like.shape))
            if name in state:
                state[name] = _shaped(state[name], like.shape)
                if isinstance(module, (Conv, Upsample)) and like.dim() == 3 and state[name].dim() == 3:
                    state[name] = kernel_layout(state[name])
    return state


def fold(scale: Tensor, direction: Tensor) -> Tensor:
    """Weight norm: scale [n, 1, 1] times each row of direction [n, …] over its length; rows of length 0 stay 0."""
    length = direction.flatten(1).norm(dim=1).view(scale.shape)
    return direction * torch.where(length > 0, scale / length, 0)


def _flat(tensors: Mapping[str, Tensor | Mapping[str, Tensor]]) -> dict[str, Tensor]:
    flat = {}
    for name, value in tensors.items():
        for inner, tensor in value.items() if isinstance(value, Mapping) else [("", value)]:
            path = f"{name}.{inner}" if inner else name
            flat[".".join(part for part in path.split(".") if part != "module")] = tensor
    return flat


def _rename(name: str, blocks_per_stage: int) -> str:
    for prefix, target in _PREFIXES.items():
        if name.startswith(prefix):
            name = target + name[len(prefix):]
    for pattern, target in _PATTERNS:
        name = pattern.sub(target, name)
    if match := re.match(r"generator\.resblocks\.(\d+)\.", name):
        stage, block = divmod(int(match[1]), blocks_per_stage)
        name = f"generator.stages.{stage}.blocks.{block}.{name[match.end():]}"
    elif match := re.match(r"prosody\.text_encoder\.lstms\.(\d+)\.", name):  # LSTMs and norms take turns
        layer, is_norm = divmod(int(match[1]), 2)
        name = f"prosody.encoder.{'norms' if is_norm else 'lstms'}.{layer}.{name[match.end():]}"
    return name


def _is_identity(name: str, tensor: Tensor) -> bool:
    match = _INSTANCE_NORM.search(name)
    return match is not None and bool((tensor == (1 if match[1] == "weight" else 0)).all())


def _turned(kernel: Tensor, shape: torch.Size) -> Tensor:
    """[a, k, b] -> [a, b, k] when that is what `shape` says."""
    if kernel.dim() == 3 and kernel.shape != shape and kernel.transpose(1, 2).shape == shape:
        return kernel.transpose(1, 2)
    return kernel


def _shaped(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Turned, or without the axes of length 1 that our vectors do not have (Snake's alpha is [1, C, 1])."""
    if len(shape) == 1 and tensor.dim() == 3 and tensor.numel() == shape.numel():
        return tensor.reshape(shape)
    return _turned(tensor, shape)
