"""Write the pair that `tts -m … -mm …` speaks with, through the converter's own layout and metadata.

    python -m training.export CONFIG DATA WORK -o OUT [--codec vocoder] [--type q8_0]
    python -m training.export CONFIG --random -o OUT        # untrained: for sizes and speed
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.loop import command, fill
from training.model import BOOKS, Nano, Speech
from training.text import learn_merges, read_merges, vocabulary
from tts_cli.gguf.file import GGUFFile
from tts_cli.qwen3tts import config as cfg
from tts_cli.qwen3tts import weights
from tts_cli.qwen3tts.convert import TYPES, write_pair
from tts_cli.qwen3tts.convert.names import Entry


def export(nano: Nano, model: Speech, merges: list[str], out: Path, name: str = "nano",
           type: str = "q8_0") -> tuple[Path, Path]:
    """Write talker and mmproj into `out`; returns their paths. Raises what `write_pair` does."""
    set_codebooks(nano, model)
    tensors = file_tensors(nano, model)

    def rows(entry: Entry) -> Iterator[np.ndarray]:
        yield tensors[entry.name].reshape(-1, entry.shape[-1]).numpy()

    config = nano.checkpoint_config()
    return write_pair(config, vocabulary(nano, merges), rows, out, name, type)


@torch.no_grad()
def set_codebooks(nano: Nano, model: Speech) -> None:
    """Fill the codebook tables with the quantiser's levels, so that the sum of a frame's rows is its latent.

    Books that the quantiser does not have add nothing, in sound and as the talker's input: any code of theirs is good.
    """
    wav, predictor = model.code2wav, model.predictor
    used = len(nano.fsq().books)
    tables = nano.fsq().tables(wav.config.codes, wav.config.codebook_width)
    wav.first_codebook.copy_(tables[0])
    wav.rest_codebooks.zero_()
    wav.rest_codebooks[:used - 1] = tables[1:]
    wav.rest_proj.copy_(wav.first_proj)
    for table in (predictor.embeddings, predictor.heads):
        table[used - 1:BOOKS - 1] = 0


@torch.no_grad()
def file_tensors(nano: Nano, model: Speech) -> dict[str, Tensor]:
    """Every tensor of both files by name: the modules' parameters, taken apart the way the loader joins them."""
    dims = nano.checkpoint_config().dims
    predictor = cfg.CodePredictorConfig(
        model.predictor.decoder.config, dims.talker.hidden, dims.codec_vocab, BOOKS, dims.predictor_vocab,
        model.predictor.projection is not None)
    parts = [(model.talker, weights.talker_names(dims.talker.layers)),
             (model.predictor, weights.predictor_names(predictor)),
             (model.code2wav, weights.code2wav_names(model.code2wav.config)),
             (model.speaker_encoder, weights.speaker_encoder_names(model.speaker_encoder.config))]
    tensors: dict[str, Tensor] = {}
    for module, names in parts:
        for name, parameter in module.named_parameters():
            tensors |= _split(parameter.detach().float().cpu(), parameter, names[name], dims)
    codec = model.predictor.first_embedding.detach().float().cpu()
    tensors["token_embd.weight"] = torch.cat((model.text_embedding.weight.detach().float().cpu(), codec))
    wav = model.code2wav.config
    for book in ("first", "rest"):  # the encoder's half of the quantiser, which decoding does not use
        tensors[f"a.gen.wav.quant.{book}.in_proj.weight"] = torch.zeros(wav.codebook_width, wav.width)
    return tensors


def _split(values: Tensor, parameter: nn.Parameter, names: tuple[str, ...], dims) -> dict[str, Tensor]:
    """One parameter as the file's tensors: with the file's order of axes, and cut where the loader stacks."""
    values = values.permute(*getattr(parameter, "file_axes", range(values.dim()))).contiguous()
    if len(names) == 1:
        return {names[0]: values}
    sizes = [len(values) // len(names)] * len(names)
    if "attn_q" in names[0] and not names[0].startswith("a.gen.wav."):
        d = dims.predictor if names[0].startswith("a.gen.code.") else dims.talker
        sizes = [d.heads * d.head_dim, d.kv_heads * d.head_dim, d.kv_heads * d.head_dim]
    return dict(zip(names, values.split(sizes), strict=True))


def load_stages(model: Speech, work: Path, codec: str) -> None:
    """Fill the model with what the stages under `work` have trained. Raises what `loop.fill` does."""
    fill({"code2wav": model.code2wav}, work / codec)
    fill({name: module for name, module in model.named_children() if name != "code2wav"}, work / "talker")


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("data", type=Path, nargs="?", help="folder of training.data, which has the vocabulary")
    parser.add_argument("work", type=Path, nargs="?", help="folder of the trained stages")
    parser.add_argument("--codec", default="vocoder", help="which stage's decoder: vocoder or adversarial")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--random", action="store_true", help="untrained weights")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    nano = Nano.read(args.config)
    model = Speech(nano)
    if args.random:
        merges = learn_merges(["a model that was never trained says nothing"], nano.values["text"]["tokens"])
    elif args.work is None:
        parser.error("give the folders of the data and of the trained stages, or --random")
    else:
        load_stages(model, args.work, args.codec)
        merges = read_merges(args.data / "merges.txt")
    total = 0
    for path in export(nano, model, merges, args.output, "nano", args.type):
        with GGUFFile.open(path) as file:
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {len(file.tensors)} tensors")
        total += path.stat().st_size
    print(f"{total / 1e6:.1f} MB in all")


if __name__ == "__main__":
    main()
