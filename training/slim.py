"""Write the weights of a stage as one small file, without what only its training needs.

    python -m training.slim WORK/adversarial -o codec.pt [--type q8_0]
    python -m training.slim WORK/talker -o talker.pt [--type q8_0]
    python -m training.evaluate codec CONFIG DATA . --stage codec.pt
    python -m training.talker CONFIG DATA WORK --codec "$PWD/codec.pt"
    python -m training.export CONFIG DATA WORK --codec "$PWD/codec.pt" -o pair

Wherever the name of a codec's stage is asked for, the path of such a file will do; it counts from WORK. `--start FILE`
of vocoder, adversarial and talker goes on from one.
"""

import argparse
from pathlib import Path

import torch

from training.loop import command, shortened, trained


def slim(stage: Path, out: Path, type: str = "f16") -> int:
    """Write `out`; its size in bytes. Raises `FileNotFoundError` where nothing is trained."""
    found = trained(stage)
    values = {f"{module}.{name}": value for module in found for name, value in found[module].items()
              if module != "judges"}
    values = {name: shortened(value) if type == "q8_0" and value.dim() > 1 and value.numel() % 32 == 0
              else value.half() for name, value in values.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(modules=values, average=None), out)
    return out.stat().st_size


@command
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m training.slim", description=__doc__.splitlines()[0])
    parser.add_argument("stage", type=Path, help="the folder of vocoder, adversarial or talker")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--type", choices=("f16", "q8_0"), default="f16", help="q8_0: matrices in half the bytes")
    args = parser.parse_args(arguments)
    print(f"{args.output}: {slim(args.stage, args.output, args.type) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
