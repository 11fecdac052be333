"""Kokoro-82M here, in the official package and in onnxruntime: real-time factor, split by part, peak memory.

    python benchmarks/kokoro.py CHECKPOINT_FOLDER [--onnx FILE.onnx …] [--peers PYTHON] [--threads 2] [--rounds 5]

Every engine runs in a process of its own and speaks the same ids with the same style; they take turns, so that a busy
machine disturbs all alike. Times are medians. `cpu` is processor time per second of sound, which a busy machine
disturbs less than the wall clock. PEERS is the interpreter of an environment with torch, kokoro (only its `model` and
what that imports: its text side is not loaded) and onnxruntime; the ONNX files are exports of the same weights
(`kokoro_onnx.py` makes a float32 one of the quantised one).
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

PHONEMES = "ðə tˈɛləfˌOn ɹˈæŋ twˈIs bəfˈɔɹ ˈɛniwˌʌn ˈænsəɹd. ju kʊd hˈɪɹ ðə ʧˈɪldɹən ˈWt bI ðə ɹˈɪvəɹ."
VOICE = "af_heart"


def ours(folder: Path, style: torch.Tensor, dtype: torch.dtype):
    from tts_cli.kokoro.checkpoint import state_from_checkpoint
    from tts_cli.kokoro.config import KokoroConfig
    from tts_cli.kokoro.model import Kokoro

    config = KokoroConfig.from_dict(json.loads((folder / "config.json").read_text("utf-8")))
    with torch.device("meta"):
        model = Kokoro(config)
    checkpoint = torch.load(folder / "kokoro-v1_0.pth", weights_only=True, mmap=True)
    model.load_state_dict(state_from_checkpoint(checkpoint, config), assign=True)
    model.eval().requires_grad_(False)
    model.convolve_in(dtype)
    ids = torch.tensor([config.vocab[symbol] for symbol in PHONEMES if symbol in config.vocab])
    parts = {"bert": model.bert, "durations": model.prosody.encoder, "shared lstm": model.prosody.shared,
             "f0, energy": (model.prosody.f0, model.prosody.energy), "text encoder": model.text_encoder,
             "decoder": model.decoder, "source": model.source, "vocoder": model.generator}
    return lambda: model(ids, style, 1.0, torch.Generator().manual_seed(0))[0], parts


def official(folder: Path, style: torch.Tensor, dtype: torch.dtype):
    sys.path.remove(str(Path(__file__).parent))  # where this file is called kokoro too
    spec = importlib.util.find_spec("kokoro")  # its __init__ imports the text side
    package = importlib.util.module_from_spec(spec)
    sys.modules["kokoro"] = package
    model_spec = importlib.util.find_spec("kokoro.model")
    module = importlib.util.module_from_spec(model_spec)
    sys.modules["kokoro.model"] = module
    model_spec.loader.exec_module(module)
    files = {"config": str(folder / "config.json"), "model": str(folder / "kokoro-v1_0.pth")}
    model = module.KModel(repo_id="local", **files).eval()
    parts = {"bert": model.bert, "durations": model.predictor.text_encoder, "shared lstm": model.predictor.shared,
             "f0, energy": (*model.predictor.F0, *model.predictor.N), "text encoder": model.text_encoder,
             "source": model.decoder.generator.m_source, "vocoder": model.decoder.generator,
             "decoder": (model.decoder.encode, *model.decoder.decode)}
    return lambda: model(PHONEMES, style[None]), parts


def onnx(file: Path, style: torch.Tensor, threads: int):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    ids = torch.tensor(ids_of(file))
    feed = {"tokens": ids[None].numpy(), "style": style[None].numpy(), "speed": torch.ones(1).numpy()}
    return lambda: torch.from_numpy(session.run(None, feed)[0]).flatten(), {}


def ids_of(beside: Path) -> list[int]:
    vocab = json.loads((beside.parent / "config.json").read_text("utf-8"))["vocab"]
    return [0, *(vocab[symbol] for symbol in PHONEMES if symbol in vocab), 0]


def watch(parts: dict, times: dict[str, float]) -> None:
    def timed(forward, name):
        def call(*args, **kwargs):
            started = time.perf_counter()
            result = forward(*args, **kwargs)
            times[name] += time.perf_counter() - started
            return result
        return call

    for name, modules in parts.items():
        for module in modules if isinstance(modules, tuple) else (modules,):
            module.forward = timed(module.forward, name)


def worker(kind: str, folder: Path, threads: int) -> None:
    """Speak once per line on standard input; answer each with a line of JSON."""
    torch.set_num_threads(threads)
    ids = ids_of(folder / "config.json")
    style = torch.load(folder / "voices" / f"{VOICE}.pt", weights_only=True)[len(ids) - 3, 0]
    if kind.endswith(".onnx"):
        speak, parts = onnx(Path(kind), style, threads)
    else:
        speak, parts = (official if kind == "official" else ours)(
            folder, style, torch.bfloat16 if kind == "bfloat16" else torch.float32)
    times = defaultdict(float)
    watch(parts, times)
    for _ in sys.stdin:
        times.clear()
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            samples = speak()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        print(json.dumps({"seconds": len(samples) / 24000, "wall": wall, "cpu": cpu, "parts": times, "peak": peak}),
              flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--onnx", nargs="*", default=[], help="files whose folder also holds config.json")
    parser.add_argument("--peers", metavar="PYTHON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker, args.folder, args.threads)
    runs = {"float32": sys.executable, "bfloat16": sys.executable}
    if args.peers:
        runs |= dict.fromkeys(("official", *args.onnx), args.peers)
    # Threads that wait by spinning slow each other down tenfold as soon as another program runs.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(args.threads),
                                "LOGURU_LEVEL": "WARNING"}
    processes = {
        kind: subprocess.Popen([python, __file__, str(args.folder), "--threads", str(args.threads), "--worker", kind],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for kind, python in runs.items()}
    results = defaultdict(list)
    for turn in range(args.rounds + 1):  # the first is for warming up
        for kind, process in processes.items():
            process.stdin.write("\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            if turn:
                results[kind].append(answer)
        print(f"round {turn} of {args.rounds}", file=sys.stderr)
    for process in processes.values():
        process.stdin.close()
        process.wait()
    report(results)


def report(results: dict[str, list[dict]]) -> None:
    for kind, rounds in results.items():
        seconds = rounds[0]["seconds"]
        wall, cpu = (statistics.median(r[key] for r in rounds) / seconds for key in ("wall", "cpu"))
        parts = {name: statistics.median(r["parts"][name] for r in rounds) / seconds for name in rounds[0]["parts"]}
        print(f"{Path(kind).name:28} {seconds:5.2f} s of sound: RTF {wall:.3f}, cpu {cpu:.3f}, "
              f"peak {rounds[-1]['peak']:.0f} MiB")
        for name, share in parts.items():
            print(f"    {name:16} {share:.3f}")


if __name__ == "__main__":
    main()
