"""`tts repl`, and `tts` alone on a terminal: type a line, hear it."""

import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import typer

from tts_cli.background import Worker
from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.cli.sources import chosen_voice, files_of, locate_pair
from tts_cli.engine import Engine, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.manner import Manner, read_voice
from tts_cli.model_choice import ModelChoice
from tts_cli.repl import Needs, Session
from tts_cli.repl_commands import Settings


def repl(
    ctx: typer.Context, *, config: o.Config = None,
    model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None,
    device: o.Device = "auto", dtype: o.Dtype = "auto", threads: o.Threads = None, gpu_layers: o.GpuLayers = None,
    no_graphs: o.NoGraphs = False,
    lang: o.Lang = "auto", voice: o.Voice = None, speed: o.Speed = 1.0, from_phonemes: o.FromPhonemes = False,
    speaker_file: o.SpeakerFile = None, no_voice: o.NoVoice = False,
    text_mode: o.TextMode = None,
    temp: o.Temp = None, top_k: o.TopK = None, top_p: o.TopP = None, repeat_penalty: o.RepeatPenalty = None,
    sub_temp: o.SubTemp = None, sub_top_k: o.SubTopK = None, sub_top_p: o.SubTopP = None,
    greedy: o.Greedy = False, no_greedy: o.NoGreedy = False, seed: o.Seed = None, max_frames: o.MaxFrames = None,
    max_chars: o.MaxChars = None, gap: o.Gap = None, chunk_frames: o.ChunkFrames = None,
    output_device: o.OutputDevice = None, quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> int:
    """Speak every line you type, on one loaded model; /help lists the commands. `tts` alone starts it too."""
    choice = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), device, dtype, threads, gpu_layers,
                         not no_graphs)
    voice, voice_file, speaker_file = chosen_voice(ctx, voice, speaker_file, no_voice)
    with o.flags_named():
        request = SpeechRequest(
            text="", language=lang, voice=voice, speed=speed, phonemes=from_phonemes, text_mode=text_mode,
            temperature=temp, top_k=top_k, top_p=top_p, repeat_penalty=repeat_penalty,
            sub_temperature=sub_temp, sub_top_k=sub_top_k, sub_top_p=sub_top_p,
            greedy=o.chosen_greedy(ctx, greedy, no_greedy), seed=seed, max_frames=max_frames,
            chunk_frames=o.parse_chunk_frames(chunk_frames))
    manner = Manner(request, speaker_file, max_chars, gap, voice_file, no_voice=no_voice)
    return interact(choice, manner, output_device, Console(quiet, verbose))


def interact(choice: ModelChoice, manner: Manner, output_device: str | None, console: Console) -> int:
    """Prompt until the person leaves. Returns 0, or the exit code of a model that could not be loaded.

    What costs no time is refused first: a terminal that is none, files that do not exist, an unknown device. The model
    is opened and read while the prompt is there already.
    """
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("the interactive mode needs a terminal; tts --lines speaks the lines of a pipe")
    manner.pieces("a")  # --max-chars and --gap
    for path in (*files_of(choice.pair), manner.speaker_file, manner.voice_file):
        if path is not None and not Path(path).exists():
            raise UsageError(f"{path}: no such file")
    if output_device is not None:
        from tts_cli.audio.play import check_output_device

        check_output_device(output_device)
    from tts_cli.cli.prompt import Prompt

    with Worker() as model_worker:
        prompt = Prompt()
        voice = Future()
        engine = model_worker.submit(_load, choice, manner, voice, console, prompt.say)
        settings = Settings(manner.request, manner.max_chars, manner.gap)
        session = Session(engine, model_worker, settings, _needs(output_device, prompt.say), prompt.say, voice=voice,
                          quiet=console.quiet, verbose=console.verbose)
        with contextlib.closing(session):
            prompt.run(session, engine)
    if engine.done() and engine.exception() is not None:
        raise engine.exception()
    return 0


def _load(choice: ModelChoice, manner: Manner, voice: "Future", console: Console,
          say: Callable[[str], None]) -> Engine:
    clip = manner.read_clip(console)
    engine = choice.open(console)
    manner.check_cloning(engine)
    with o.flags_named():
        chosen = manner.with_voice_file(engine).request.voice
        engine.check(replace(manner.request, text="a", voice=chosen))
    choice.tell(console, engine)
    engine.load()
    voice.set_result(manner.voiced(engine, clip, console, None if console.quiet else say).request.voice)
    return engine


def _needs(output_device: str | None, say: Callable[[str], None]) -> Needs:
    def open_player(sample_rate: int, expected_seconds: float):
        from tts_cli.audio.play import Player

        return Player(sample_rate, output_device, expected_seconds=expected_seconds)

    def pieces(text: str, settings: Settings):
        return Manner(settings.request, None, settings.max_chars, settings.gap).pieces(text)

    def read_clip(path: Path):
        return read_voice(path, lambda warning: say(f"warning: {warning}"))

    return Needs(open_player, pieces, read_clip)
