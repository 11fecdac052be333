"""From two GGUF files to modules: which tensor fills which parameter, strictly.

A parameter that stacks several matrices lists their tensors in order. Every tensor of a file must be used or be named
here as unused; what is missing or extra is listed in one error.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from tts_cli.errors import ModelFileError
from tts_cli.gguf.file import GGUFFile
from tts_cli.qwen3tts import config as cfg
from tts_cli.qwen3tts.batched_steps import Batch
from tts_cli.qwen3tts.code2wav import Code2Wav
from tts_cli.qwen3tts.code_predictor import CodePredictor
from tts_cli.qwen3tts.codec_encoder import CodecEncoder
from tts_cli.qwen3tts.layers import fit_kernels
from tts_cli.qwen3tts.speaker_encoder import SpeakerEncoder
from tts_cli.qwen3tts.static_steps import StaticModels
from tts_cli.qwen3tts.talker import Talker

Names = dict[str, tuple[str, ...]]
Parts = list[tuple[nn.Module, Names]]

# Read row by row on demand, or stored for other tools only.
_UNUSED = {"token_embd.weight", "a.gen.wav.quant.first.in_proj.weight", "a.gen.wav.quant.rest.in_proj.weight"}
_OWN_PREFIX = "tts_cli."


@dataclass
class Models:
    """The networks that speak.

    `static`: talker and predictor in a form for CUDA graphs, which the loop then uses instead. `batch`: where
    utterances that take turns meet, when one pass over several costs less than several passes.
    """

    talker: Talker
    predictor: CodePredictor
    code2wav: Code2Wav
    static: StaticModels | None = None
    batch: Batch | None = None


def load_models(talker: GGUFFile, mmproj: GGUFFile, dtype: torch.dtype, device: torch.device,
                compiled: bool = True) -> Models:
    """Read both files, but for the encoders. Raises `ModelFileError` listing missing, extra and misshapen tensors.

    compiled  on the CPU, let talker and predictor multiply with the files' own bytes (`qwen3tts.compiled`)
    """
    c = cfg.talker_config(talker)
    with torch.device("meta"):
        model = Talker(c.transformer, c.codec_vocab, dtype)
    p = cfg.code_predictor_config(mmproj)
    with torch.device("meta"):
        predictor = CodePredictor(p.transformer, p.talker_hidden, p.codec_vocab, p.books, p.codes, p.projection, dtype)
    code2wav, _, codec_parts = _codec_parts(mmproj)
    talker_parts, predictor_parts = [(model, talker_names(c.transformer.layers))], [(predictor, predictor_names(p))]
    _check_names(talker, talker_parts)
    _check_names(mmproj, predictor_parts + codec_parts)
    stored = compiled and device.type == "cpu" and fit_kernels(c.transformer) and fit_kernels(p.transformer)
    if stored:
        from tts_cli.qwen3tts.compiled import use_stored, use_stored_rows  # numba takes a while to import

        use_stored(talker, *talker_parts[0], dtype)
        use_stored(mmproj, *predictor_parts[0], dtype)
        use_stored_rows(mmproj, *codec_parts[0])
    else:
        _fill(talker, talker_parts, device)
        _fill(mmproj, predictor_parts, device)
    _fill(mmproj, codec_parts[:1], device)
    for module, names in codec_parts[1:]:
        for name, parameter in module.named_parameters():
            _checked(mmproj, names[name], parameter)
    return Models(model, predictor, code2wav, batch=Batch() if stored else None)


def load_codec(mmproj: GGUFFile, device: torch.device) -> tuple[Code2Wav, SpeakerEncoder | None]:
    """Only what turns codes into sound and sound into an x-vector. Raises `ModelFileError`."""
    code2wav, speaker_encoder, parts = _codec_parts(mmproj)
    _check_names(mmproj, parts, ignore=lambda name: name.startswith("a.gen.code."))
    _fill(mmproj, parts, device)
    return code2wav, speaker_encoder


def load_speaker_encoder(mmproj: GGUFFile, device: torch.device) -> SpeakerEncoder | None:
    """The part that turns a clip into an x-vector; None when the file has none. Raises `ModelFileError`."""
    encoder, parts = _speaker_encoder_part(mmproj)
    _fill(mmproj, parts, device)
    return encoder


def load_codec_encoder(mmproj: GGUFFile, device: torch.device) -> CodecEncoder | None:
    """The part that turns a clip into codes; None when the file has none. Raises `ModelFileError`."""
    c = cfg.codec_encoder_config(mmproj)
    if c is None:
        return None
    with torch.device("meta"):
        encoder = CodecEncoder(c)
    parts: Parts = [(encoder, _codec_encoder_names(c))]
    _check_names(mmproj, parts, ignore=lambda name: name.startswith(("a.", "mm.a.")))
    _fill(mmproj, parts, device)
    return encoder


def _codec_parts(mmproj: GGUFFile) -> tuple[Code2Wav, SpeakerEncoder | None, Parts]:
    c = cfg.code2wav_config(mmproj)
    with torch.device("meta"):
        code2wav = Code2Wav(c)
    encoder, parts = _speaker_encoder_part(mmproj)
    return code2wav, encoder, [(code2wav, code2wav_names(c)), *parts]


def _speaker_encoder_part(mmproj: GGUFFile) -> tuple[SpeakerEncoder | None, Parts]:
    c = cfg.speaker_encoder_config(mmproj)
    if c is None:
        return None, []
    with torch.device("meta"):
        encoder = SpeakerEncoder(c)
    return encoder, [(encoder, speaker_encoder_names(c))]


def _check_names(file: GGUFFile, parts: Parts, ignore: Callable[[str], bool] = lambda name: False) -> None:
    """Every tensor of the file is used, and every tensor named is there."""
    wanted = {tensor for _, names in parts for tensors in names.values() for tensor in tensors}
    missing = sorted(wanted - file.tensors.keys())
    extra = sorted(name for name in file.tensors.keys() - wanted - _UNUSED
                   if not name.startswith(_OWN_PREFIX) and not ignore(name))
    if missing or extra:
        found = [f"{what} {len(some)}: {', '.join(some[:5])}{', …' if len(some) > 5 else ''}"
                 for what, some in (("missing", missing), ("not known", extra)) if some]
        raise ModelFileError(f"{file.path}: tensors {'; '.join(found)}")


def _fill(file: GGUFFile, parts: Parts, device: torch.device) -> None:
    """Give every parameter its storage on `device` and read its tensors into it, one after the other."""
    for module, names in parts:
        for name, parameter in dict(module.named_parameters()).items():
            _set(module, name, _read(file, names[name], parameter, device))
        module.eval()


def _axes(like: nn.Parameter) -> Sequence[int]:
    """Which of its axes each axis in the file is: the same, where it does not say otherwise."""
    return getattr(like, "file_axes", range(like.dim()))


def _checked(file: GGUFFile, tensors: tuple[str, ...], like: nn.Parameter) -> tuple[int, ...]:
    """The shape of the stacked tensors. Raises `ModelFileError` when it is not the parameter's."""
    infos = [file.tensor(name) for name in tensors]
    expected = tuple(like.shape[axis] for axis in _axes(like))
    # Convolution kernels and one-column matrices may be stored with or without their axes of length 1.
    shapes = [tuple(n for n in info.shape if n != 1) for info in infos]
    stacked = (sum(s[0] if s else 1 for s in shapes),) + shapes[0][1:] if len(infos) > 1 else shapes[0]
    if stacked != tuple(n for n in expected if n != 1) or any(s[1:] != shapes[0][1:] for s in shapes):
        raise ModelFileError(f"{file.path}: {' + '.join(tensors)} has shape "
                             f"{' + '.join(str(i.shape) for i in infos)}, expected {expected} in all")
    return expected


def _read(file: GGUFFile, tensors: tuple[str, ...], like: nn.Parameter, device: torch.device) -> nn.Parameter:
    """The tensors, stacked and with the parameter's axes."""
    out = torch.empty(_checked(file, tensors, like), dtype=like.dtype, device=device)
    flat, start, axes = out.view(-1), 0, _axes(like)
    for name in tensors:
        count = math.prod(file.tensor(name).shape)
        file.read_into(name, flat[start:start + count])
        start += count
    out = out.permute(*(axes.index(axis) for axis in range(like.dim()))).contiguous()
    return nn.Parameter(out, requires_grad=False)


def _set(module: nn.Module, path: str, parameter: nn.Parameter) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        module = getattr(module, parent)
    setattr(module, name, parameter)


def _names(table: Mapping[str, str], prefix: str = "", target: str = "") -> Names:
    """A table of `parameter: "tensor tensor …"` with prefixes on both sides."""
    return {target + name: tuple(prefix + tensor for tensor in tensors.split()) for name, tensors in table.items()}


def _decoder_names(layers: int, prefix: str, norm1: str, norm2: str, out: str) -> Names:
    table = {"attn_norm": f"{norm1}.weight", "qkv": "attn_q.weight attn_k.weight attn_v.weight",
             "q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight", "attn_out": f"{out}.weight",
             "ffn_norm": f"{norm2}.weight", "gate_up": "ffn_gate.weight ffn_up.weight", "ffn_down": "ffn_down.weight"}
    names: Names = {"decoder.norm": (f"{prefix}output_norm.weight",)}
    for i in range(layers):
        names |= _names(table, f"{prefix}blk.{i}.", f"decoder.blocks.{i}.")
    return names


def talker_names(layers: int) -> Names:
    return _decoder_names(layers, "", "attn_norm", "ffn_norm", "attn_output") | {"head": ("output.weight",)}


def predictor_names(p: cfg.CodePredictorConfig) -> Names:
    table = {"first_embedding": "out_embd.weight", "embeddings": "embd.weight", "heads": "head.weight"}
    if p.projection:
        table |= {"projection": "proj_in.weight", "projection_bias": "proj_in.bias"}
    return _decoder_names(p.transformer.layers, "a.gen.code.", "ln1", "ln2", "attn_out") | _names(table, "a.gen.code.")


def _conv(target: str, tensor: str) -> Names:
    return {f"{target}.weight": (f"{tensor}.weight",), f"{target}.bias": (f"{tensor}.bias",)}


def _snake(target: str, tensor: str) -> Names:
    return {f"{target}.alpha": (f"{tensor}.alpha",), f"{target}.beta": (f"{tensor}.beta",)}


def code2wav_names(c: cfg.Code2WavConfig) -> Names:
    p = "a.gen.wav."
    names = _names({"first_codebook": "quant.first.codebook.weight", "first_proj": "quant.first.out_proj.weight",
                    "rest_codebooks": "quant.rest.codebook.weight", "rest_proj": "quant.rest.out_proj.weight",
                    "in_proj": "tfm.in_proj.weight", "in_proj_bias": "tfm.in_proj.bias",
                    "norm": "tfm.output_norm.weight", "out_proj": "tfm.out_proj.weight",
                    "out_proj_bias": "tfm.out_proj.bias"}, p)
    names |= _conv("pre_conv", p + "pre_conv")
    block = {"attn_norm": "ln1.weight", "qkv": "attn_q.weight attn_k.weight attn_v.weight",
             "attn_out": "attn_out.weight", "attn_scale": "ls1.weight", "ffn_norm": "ln2.weight",
             "gate_up": "ffn_gate.weight ffn_up.weight", "ffn_down": "ffn_down.weight", "ffn_scale": "ls2.weight"}
    for i in range(c.layers):
        names |= _names(block, f"{p}tfm.blk.{i}.", f"blocks.{i}.")
    convnext = {"norm": "norm.weight", "norm_bias": "norm.bias", "pw1": "pw1.weight", "pw1_bias": "pw1.bias",
                "pw2": "pw2.weight", "pw2_bias": "pw2.bias", "gamma": "gamma"}
    for i in range(len(c.upsample_ratios)):
        names |= _conv(f"upsample.{i}.0", f"{p}up.blk.{i}.conv")
        names |= _conv(f"upsample.{i}.1.dwconv", f"{p}up.blk.{i}.dwconv")
        names |= _names(convnext, f"{p}up.blk.{i}.", f"upsample.{i}.1.")
    names |= _conv("entry", p + "dac.entry")
    for i in range(len(c.upsample_rates)):
        source = f"{p}dac.blk.{i}"
        names |= _snake(f"decoder.{i}.snake", f"{source}.snake") | _conv(f"decoder.{i}.conv", f"{source}.conv")
        for j in range(len(c.dilations)):
            for k in (1, 2):
                names |= _snake(f"decoder.{i}.res.{j}.act{k}", f"{source}.res.{j}.act{k}")
                names |= _conv(f"decoder.{i}.res.{j}.conv{k}", f"{source}.res.{j}.conv{k}")
    return names | _snake("post_snake", p + "dac.post_snake") | _conv("post_conv", p + "dac.post_conv")


def _codec_encoder_names(c: cfg.CodecEncoderConfig) -> Names:
    p = "tts_cli.enc."
    names = _names({"semantic_proj": "semantic.proj.weight", "semantic_codebook": "semantic.codebook.weight",
                    "acoustic_proj": "acoustic.proj.weight", "acoustic_codebooks": "acoustic.codebook.weight",
                    "downsample.weight": "downsample.weight"}, p)
    for part in ("entry", "exit", *(f"stage.{i}.{conv}" for i in range(len(c.strides))
                                    for conv in ("squeeze", "expand", "down"))):
        names |= _conv(part.replace("stage.", "stages."), p + part)
    block = {"attn_norm": "ln1.weight", "attn_norm_bias": "ln1.bias",
             "qkv": "attn_q.weight attn_k.weight attn_v.weight", "attn_out": "attn_out.weight",
             "attn_scale": "ls1.weight", "ffn_norm": "ln2.weight", "ffn_norm_bias": "ln2.bias",
             "ffn_up": "ffn_up.weight", "ffn_down": "ffn_down.weight", "ffn_scale": "ls2.weight"}
    for i in range(c.layers):
        names |= _names(block, f"{p}blk.{i}.", f"blocks.{i}.")
    return names


def speaker_encoder_names(c: cfg.SpeakerEncoderConfig) -> Names:
    names: Names = {}
    for target, tensor in (("stem", "a.conv1d.0"), ("aggregate", "a.conv_out"), ("asp_tdnn", "a.asp_tdnn"),
                           ("asp_attn", "a.asp_attn"), ("output", "mm.a.fc")):
        names |= _conv(target, tensor)
    for i in range(len(c.dilations)):
        for part in ("conv_pw1", "conv_pw2", "se_conv1", "se_conv2",
                     *(f"res2.{j}" for j in range(c.res2net_scale - 1))):
            names |= _conv(f"blocks.{i}.{part}", f"a.blk.{i + 1}.{part}")
    return names
