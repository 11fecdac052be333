"""The loop every stage runs in: steps whose randomness is their number, checkpoints, slices of time.

A run can be stopped and gone on with at any step and comes to the same weights: nothing is drawn from a generator
that lives longer than one step.
"""

import argparse
import contextlib
import functools
import os
import pickle
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tts_cli.device import resolve_device
from tts_cli.errors import TtsError

REPORT = 50         # steps between two lines
SAVE_MINUTES = 5.0
MOST_GRADIENT = 1.0     # norm to which gradients are cut
CHECKPOINT, BEST = "checkpoint.pt", "best.pt"


class Stage(Protocol):
    """What is trained and how.

    name        the folder of its checkpoints
    modules     everything that a checkpoint holds
    optimizers  with learning rates that the loop sets: `rate` times the schedule
    steps       how many there are in all
    average     of the weights over about this many steps is what is used later; 0: the last ones
    """

    name: str
    modules: nn.ModuleDict
    optimizers: list[torch.optim.Optimizer]
    steps: int
    rate: float
    average: int

    def begin(self, work: Path, start: Path | None) -> None:
        """Take the weights of the file `start`, else of the stages before, below `work`. Not called where a checkpoint
        has them all."""

    def step(self, number: int, rng: np.random.Generator) -> Mapping[str, Tensor | float]:
        """One forward and backward pass, gradients left in place; the losses to report."""

    def report(self) -> Mapping[str, float]:
        """Measured on held-out data, now and then. Where it has a `loss`, the weights that had the least are what is
        used later, and after `patience` reports that were no better the stage ends."""


def schedule(step: int, steps: int, warmup: int = 60, least: float = 0.02) -> float:
    """The share of the learning rate at a step: a short rise, then straight down."""
    return min(1, (step + 1) / warmup) * (least + (1 - least) * (1 - step / steps))


def train(stage: Stage, work: Path, minutes: float = float("inf"), most: float = float("inf"),
          evaluate_every: int = 500) -> bool:
    """Go on from the last checkpoint for `minutes` or `most` steps, or to the end; whether the end is reached.

    Ctrl-C and SIGTERM end the process after the step at hand and a checkpoint. Raises `ValueError` for a checkpoint of
    other sizes than the stage's.
    """
    folder = work / stage.name
    folder.mkdir(parents=True, exist_ok=True)
    averages = Average(stage.modules, stage.average) if stage.average else None
    done, best = _load(stage, averages, folder / CHECKPOINT)
    last = done + most
    started = saved = time.monotonic()
    losses = Means()
    with _signals_noted() as signals:
        while not (signals or _ended(stage, best, done)) and done < last and time.monotonic() - started < 60 * minutes:
            losses.add(update(stage, done))
            if averages:
                averages.update(stage.modules, done)
            done += 1
            if done % REPORT == 0 or done == stage.steps:
                minute = f"{(time.monotonic() - started) / 60:.1f} min"
                _say(folder, f"{stage.name} {done}/{stage.steps}  {minute}  {losses.take()}")
            if done % evaluate_every == 0 or done == stage.steps:
                best = _evaluate(stage, done, best, folder)
            if time.monotonic() - saved > 60 * SAVE_MINUTES:
                _save(stage, averages, done, best, folder / CHECKPOINT)
                saved = time.monotonic()
        _save(stage, averages, done, best, folder / CHECKPOINT)
    if signals:
        raise SystemExit(128 + signals[0])
    return _ended(stage, best, done)


@contextlib.contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """The numbers of the signals that came to end the process; the second of a kind does so at once."""
    came: list[int] = []

    def note(number, frame) -> None:
        came.append(number)
        signal.signal(number, before[number])

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def update(stage: Stage, number: int) -> dict[str, float]:
    """One step of all optimizers; the losses, and the norm of the gradient as `grad`."""
    torch.manual_seed(number)
    groups = [group for optimizer in stage.optimizers for group in optimizer.param_groups]
    for group in groups:
        group["lr"] = stage.rate * schedule(number, stage.steps) * group.get("scale", 1.0)
    for optimizer in stage.optimizers:
        optimizer.zero_grad(set_to_none=True)
    losses = stage.step(number, np.random.default_rng((number, 1)))
    norm = nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], MOST_GRADIENT)
    if torch.isfinite(norm):  # one bad batch must not end a night's work
        for optimizer in stage.optimizers:
            optimizer.step()
    return {name: float(value) for name, value in losses.items()} | {"grad": float(norm)}


def _evaluate(stage: Stage, done: int, best: dict[str, float], folder: Path) -> dict[str, float]:
    """Report on held-out data and keep the weights where they are the best; what is the best now."""
    stage.modules.eval()
    with torch.no_grad():
        figures = stage.report()
    stage.modules.train()
    if figures:
        _say(folder, f"{stage.name} {done} held out  {_line(figures)}")
    if "loss" not in figures:
        return best
    if figures["loss"] >= best["loss"]:
        return dict(best, since=best["since"] + 1)
    _write(dict(modules=stage.modules.state_dict(), average=None), folder / BEST)
    return dict(loss=figures["loss"], since=0)


def _say(folder: Path, line: str) -> None:
    print(line, flush=True)
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        log.write(line + "\n")


def _line(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in figures.items())


class Means:
    """Of all that is added, until it is taken."""

    def __init__(self):
        self._sums: dict[str, list[float]] = defaultdict(list)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._sums[name].append(value)

    def take(self) -> str:
        line = _line({name: sum(values) / len(values) for name, values in self._sums.items()})
        self._sums.clear()
        return line


def _ended(stage: Stage, best: Mapping[str, float], done: int) -> bool:
    return done >= stage.steps or best["since"] > getattr(stage, "patience", float("inf"))


class Average:
    """A running mean of all weights, shorter at the start."""

    def __init__(self, modules: nn.ModuleDict, steps: int):
        self.steps = steps
        self.values = {name: value.detach().clone() for name, value in modules.state_dict().items()}

    @torch.no_grad()
    def update(self, modules: nn.ModuleDict, step: int) -> None:
        weight = max(1 / self.steps, 1 / (step / 3 + 1))
        for name, value in modules.state_dict().items():
            self.values[name].lerp_(value, weight)


def _save(stage: Stage, averages: Average | None, done: int, best: Mapping[str, float], path: Path) -> None:
    _write(dict(step=done, best=best, modules=stage.modules.state_dict(),
                optimizers=[o.state_dict() for o in stage.optimizers], average=averages.values if averages else None),
           path)


def _write(state: dict, path: Path) -> None:
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def _load(stage: Stage, averages: Average | None, path: Path) -> tuple[int, dict[str, float]]:
    """The number of steps done, and of the best report its loss and how many came since."""
    if not path.exists():
        return 0, dict(loss=float("inf"), since=0)
    state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        stage.modules.load_state_dict(state["modules"])
    except RuntimeError:  # the config says other sizes, or more speech has brought the talker's hints new phonemes
        folder = path.parent
        raise ValueError(
            f"{path}: made for other sizes than the config's, or for other phonemes than the speech has now. If it is "
            f"the phonemes, go on with its weights: python -m training.slim {folder} -o FILE, move {folder} away, and "
            "begin with --start FILE") from None
    for optimizer, values in zip(stage.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(values)
    if averages and state["average"]:
        for name, value in state["average"].items():
            averages.values[name].copy_(value)
    return state["step"], state["best"]


def trained(stage: Path) -> dict[str, dict[str, Tensor]]:
    """A stage's weights by module: the best ones, or the averaged ones, or the last.

    stage: its folder, or a file of `training.slim`. Raises `FileNotFoundError`, and `ValueError` for another file.
    """
    files = [stage] if stage.is_file() else [stage / name for name in (BEST, CHECKPOINT)]
    path = next((file for file in files if file.exists()), None)
    if path is None:
        raise FileNotFoundError(f"{stage}: nothing trained here yet")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError):
        raise ValueError(f"{path}: no checkpoint, and no file of training.slim") from None
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, value in (state["average"] or state["modules"]).items():
        module, _, rest = name.partition(".")
        found[module][rest] = value if isinstance(value, Tensor) else restored(*value)
    return found


def fill(modules: Mapping[str, nn.Module], stage: Path) -> dict[str, dict[str, Tensor]]:
    """Give modules what is `trained` under their names; returns all there is, those of other names, too.

    Raises what `trained` does, and `ValueError` where a module's weights are missing or of other sizes.
    """
    found = trained(stage)
    for name, module in modules.items():
        try:
            module.load_state_dict(found[name])
        except RuntimeError:
            raise ValueError(f"{stage}: there is no {name} of the config's sizes in it") from None
    return found


def shortened(value: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor of a multiple of 32 values as int8 in its shape and a float16 for each 32 of them, like q8_0."""
    blocks = value.float().reshape(-1, 32)
    scale = (blocks.abs().amax(1, keepdim=True) / 127).half()
    return (blocks / scale.float().clamp(min=1e-7)).round().clamp(-127, 127).to(torch.int8).view(value.shape), scale


def restored(short: Tensor, scale: Tensor) -> Tensor:
    """What `shortened` had, but for half a step of each block."""
    return (short.reshape(-1, 32) * scale.float()).view(short.shape)


def command(main: Callable[[list[str] | None], None]) -> Callable[..., None]:
    """A `main` that ends with one line and exit code 2, as argparse does, when what it was given cannot be used."""
    @functools.wraps(main)
    def plain(arguments: list[str] | None = None) -> None:
        try:
            main(arguments)
        except (OSError, ValueError, TtsError) as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            sys.exit("interrupted")

    return plain


def stage_arguments(module: str, description: str, stages: Iterable[str] = ()) -> argparse.ArgumentParser:
    """The command line all stages share; where there are several, their names come first."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    if stages:
        parser.add_argument("stage", choices=list(stages))
    parser.add_argument("config", type=Path)
    parser.add_argument("data", type=Path, help="folder of training.data")
    parser.add_argument("work", type=Path, help="folder for checkpoints and logs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long; run again to go on")
    parser.add_argument("--steps", type=int, help="in all, over which the rate falls; else the config's")
    parser.add_argument("--start", type=Path, help="file of training.slim to begin with, instead of the stage before")
    parser.add_argument("--threads", type=int, default=1, help="of torch on the CPU")
    parser.add_argument("--device", type=lambda name: str(resolve_device(name)), default="cpu",
                        help="auto, cpu, cuda, cuda:N or mps")
    return parser


def prepare(threads: int) -> None:
    """Set how this process computes on the CPU: with so many threads, and fast where numbers nearly vanish."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # silence makes them, and they are slow


def mixed(device: str) -> torch.autocast:
    """Products in bfloat16, for passes that are trained: half the time on GPUs and on CPUs that have it in hardware,
    seventy times as long on those that have not."""
    kind = torch.device(device).type
    fast = kind != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.autocast(kind, torch.bfloat16, enabled=fast)


def run(stage: Stage, args: argparse.Namespace) -> None:
    """What the command line asks for. Raises what `Stage.begin` and `train` do."""
    stage.steps = args.steps or stage.steps
    if not (args.work / stage.name / CHECKPOINT).exists():
        stage.begin(args.work, args.start)
    complete = train(stage, args.work, args.minutes)
    print("complete" if complete else "stopped in time; run again to go on", file=sys.stderr)
