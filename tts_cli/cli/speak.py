"""`tts -p TEXT -o FILE`: the bare command speaks.

Everything that can be refused is refused before a weight is read: text, options, output, clip, files, language.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.cli.files import whole_file
from tts_cli.cli.sources import locate_pair, read_text, resolve_pair, use_threads
from tts_cli.engine import SpeechRequest, SpeechResult, open_engine
from tts_cli.errors import UsageError

EXIT_CUT = 3


@dataclass(frozen=True)
class _Outputs:
    path: str
    format: str
    codes: str | None

    def check(self, inputs: Sequence[str | Path | None]) -> None:
        from tts_cli.audio.write import check_output

        read = [Path(path) for path in inputs if path and path != "-"]
        check_output(self.path, inputs=read)
        if self.codes is not None:
            if self.codes == "-":
                raise UsageError("--dump-codes: standard output is for audio; give a file name")
            if os.path.realpath(self.codes) == os.path.realpath(self.path):
                raise UsageError("--dump-codes and --output name the same file")
            check_output(self.codes, inputs=read)


def speak(
    ctx: typer.Context,
    *,
    prompt: o.Prompt = None, file: o.File = None, config: o.Config = None,
    model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None,
    device: o.Device = "auto", dtype: o.Dtype = "auto", threads: o.Threads = None, gpu_layers: o.GpuLayers = None,
    lang: o.Lang = "auto", speaker_file: o.SpeakerFile = None, no_voice: o.NoVoice = False,
    text_mode: o.TextMode = None,
    temp: o.Temp = None, top_k: o.TopK = None, top_p: o.TopP = None, repeat_penalty: o.RepeatPenalty = None,
    sub_temp: o.SubTemp = None, sub_top_k: o.SubTopK = None, sub_top_p: o.SubTopP = None,
    greedy: o.Greedy = False, seed: o.Seed = None, max_frames: o.MaxFrames = None,
    output: o.Output = None, format: o.Format = None, dump_codes: o.DumpCodes = None,
    quiet: o.Quiet = False, verbose: o.Verbose = False, version: o.Version = False,
) -> int:
    """Speak TEXT with a Qwen3-TTS model (two GGUF files) into an audio file.

    Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 cut at the automatic frame budget, 130 interrupted.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_options_before_a_verb(ctx)
        return 0
    console = Console(quiet, verbose)
    pair = locate_pair(ctx, model, mmproj, hf_repo)
    if output is None:
        raise UsageError("say where to write: -o out.wav, or -o - for WAV on standard output")
    speaker_file = o.only_one(ctx, {"speaker_file": speaker_file, "no_voice": no_voice})["speaker_file"]
    with o.flags_named():
        request = SpeechRequest(
            text=read_text(ctx, prompt, file), language=lang, text_mode=text_mode,
            temperature=temp, top_k=top_k, top_p=top_p, repeat_penalty=repeat_penalty,
            sub_temperature=sub_temp, sub_top_k=sub_top_k, sub_top_p=sub_top_p,
            greedy=greedy, seed=seed, max_frames=max_frames)
    outputs = _checked_outputs(output, format, dump_codes, [file, speaker_file, model, mmproj])
    clip = _read_clip(speaker_file)

    talker, projector = resolve_pair(pair, console)
    threads = use_threads(threads)
    engine = open_engine(talker, projector, device=device, dtype=dtype)
    outputs.check([engine.files.talker.path, engine.files.mmproj.path])
    with o.flags_named():
        engine.check(request)
    _say_what_runs(engine, threads, gpu_layers, console)
    if clip is not None:
        request = replace(request, voice=engine.voice_from_clip(clip, Path(speaker_file).stem))
        engine.check(request)
    engine.load()
    result = _write(engine, request, outputs, console)
    return _report(result, request, outputs, console)


def _refuse_options_before_a_verb(ctx: typer.Context) -> None:
    lost = [parameter.opts[0] for parameter in ctx.command.params if o.typed(ctx, parameter.name)]
    if lost:
        raise UsageError(f"{', '.join(lost)} before the verb {ctx.invoked_subcommand}: options of a verb come after it")


def _checked_outputs(path: str, format: str | None, codes: str | None, inputs: Sequence[str | None]) -> _Outputs:
    from tts_cli.audio.write import choose_format

    outputs = _Outputs(path, choose_format(path, format), codes)
    outputs.check(inputs)
    return outputs


def _read_clip(speaker_file: str | None):
    if speaker_file is None:
        return None
    from tts_cli.audio.read import read_clip

    return read_clip(speaker_file)


def _say_what_runs(engine, threads: int, gpu_layers: str | None, console: Console) -> None:
    files = engine.files
    dtype = str(engine.dtype).removeprefix("torch.")
    console.detail(f"model: {files.talker.path} ({engine.kind}) with {files.mmproj.path}")
    console.detail(f"device: {engine.device}, {dtype}, {threads} CPU threads")
    console.detail(f"languages: auto, {', '.join(engine.languages)}")
    console.detail(f"text mode: {engine.text_mode} unless --text-mode says otherwise")
    console.detail(f"sampling defaults: {engine.defaults}")
    if gpu_layers is not None:
        console.detail(f"-ngl {gpu_layers} is ignored: --device decides where to compute")


def _write(engine, request: SpeechRequest, outputs: _Outputs, console: Console) -> SpeechResult:
    """Consume the one generator into the audio file and, when asked, the codes file."""
    import numpy as np

    from tts_cli.audio.write import open_writer

    codes = []
    with contextlib.ExitStack() as stack:
        codes_file = stack.enter_context(whole_file(outputs.codes)) if outputs.codes else None
        writer = stack.enter_context(open_writer(outputs.path, outputs.format, engine.sample_rate))
        progress = stack.enter_context(console.audio_progress())
        speech = engine.speak(request)
        for chunk in speech:
            writer.write(chunk.samples)
            progress.advance(chunk.samples.size / chunk.sample_rate)
            if codes_file is not None and chunk.codes is not None:
                codes.append(chunk.codes)
        if codes_file is not None:
            np.save(codes_file, np.concatenate(codes).astype(np.int32) if codes else np.zeros((0, 16), np.int32))
    return speech.result


def _report(result: SpeechResult, request: SpeechRequest, outputs: _Outputs, console: Console) -> int:
    first = "none" if result.first_audio_seconds is None else f"{1000 * result.first_audio_seconds:.0f} ms"
    where = "standard output" if outputs.path == "-" else outputs.path
    cut = result.finish_reason == "limit"
    if cut:
        advice = "raise -n to let it go on" if request.max_frames else "give -n FRAMES to allow more"
        console.warning(f"truncated after {result.frames} frames ({result.audio_seconds:.2f} s): the model had not "
                        f"ended the speech; {advice}")
    console.note(f"{where}: {result.audio_seconds:.2f} s of audio in {result.wall_seconds:.2f} s "
                 f"({result.times_real_time:.2f} x real time), first audio {first}, "
                 f"finish {result.finish_reason}, seed {result.seed}")
    return EXIT_CUT if cut and request.max_frames is None else 0
