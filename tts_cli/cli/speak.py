"""`tts -p TEXT`: the bare command speaks, aloud or into a file or pipe; alone on a terminal it is interactive.

Everything that can be refused is refused before a weight is read: text, options, outputs, sound device, clip, files,
language. The model works on a thread of its own (`background`), so Ctrl-C is answered at any moment.
"""

import sys

import typer

from tts_cli.background import Worker
from tts_cli.cli import options as o
from tts_cli.cli.config import check_settings
from tts_cli.cli.console import Console, one_interrupt
from tts_cli.cli.run import ready, speak_text
from tts_cli.cli.sinks import Outputs
from tts_cli.cli.sources import chosen_voice, locate_pair, read_ref_text, read_text
from tts_cli.engine import SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.manner import Manner
from tts_cli.model_choice import ModelChoice


def speak(
    ctx: typer.Context,
    *,
    prompt: o.Prompt = None, file: o.File = None, config: o.Config = None,
    model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None,
    device: o.Device = "auto", dtype: o.Dtype = "auto", threads: o.Threads = None, gpu_layers: o.GpuLayers = None,
    no_graphs: o.NoGraphs = False,
    lang: o.Lang = "auto", voice: o.Voice = None, speaker_file: o.SpeakerFile = None, ref_text: o.RefText = None,
    ref_text_file: o.RefTextFile = None, trim_ref: o.TrimRef = False, no_voice: o.NoVoice = False,
    instruct: o.Instruct = None, speed: o.Speed = 1.0, phonemes: o.Phonemes = False,
    from_phonemes: o.FromPhonemes = False, text_mode: o.TextMode = None, explain: o.Explain = False,
    temp: o.Temp = None, top_k: o.TopK = None, top_p: o.TopP = None, repeat_penalty: o.RepeatPenalty = None,
    sub_temp: o.SubTemp = None, sub_top_k: o.SubTopK = None, sub_top_p: o.SubTopP = None,
    greedy: o.Greedy = False, no_greedy: o.NoGreedy = False, seed: o.Seed = None, max_frames: o.MaxFrames = None,
    max_chars: o.MaxChars = None, gap: o.Gap = None, srt: o.Srt = None, vtt: o.Vtt = None,
    timestamps: o.Timestamps = None,
    output: o.Output = None, format: o.Format = None, chunk_frames: o.ChunkFrames = None,
    dump_codes: o.DumpCodes = None, lines: o.Lines = False, output_dir: o.OutputDir = None,
    play: o.Play = False, output_device: o.OutputDevice = None, list_devices: o.ListDevices = False,
    quiet: o.Quiet = False, verbose: o.Verbose = False, version: o.Version = False,
) -> int:
    """Speak TEXT, aloud or into an audio file, with the built-in voice or another model; alone: interactive.

    Exit codes: 0 done, 1 failed, 2 bad usage or input, 3 cut at the automatic frame budget, 4 some rows of a batch
    failed, 130 interrupted, 129 or 143 ended by a signal, 141 the reader of the pipe went away.
    """
    check_settings(ctx)
    if ctx.invoked_subcommand is not None:
        _refuse_options_before_a_verb(ctx)
        return 0
    if list_devices:
        return print_devices()
    console = Console(quiet, verbose)
    choice = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), device, dtype, threads, gpu_layers,
                         not no_graphs)
    voice, voice_file, speaker_file = chosen_voice(ctx, voice, speaker_file, no_voice)
    with o.flags_named():
        request = SpeechRequest(
            text="", language=lang, voice=voice, instruct=instruct, speed=speed, phonemes=from_phonemes,
            text_mode=text_mode,
            temperature=temp, top_k=top_k, top_p=top_p, repeat_penalty=repeat_penalty,
            sub_temperature=sub_temp, sub_top_k=sub_top_k, sub_top_p=sub_top_p,
            greedy=o.chosen_greedy(ctx, greedy, no_greedy), seed=seed, max_frames=max_frames,
            chunk_frames=o.parse_chunk_frames(chunk_frames))
    manner = Manner(request, speaker_file, max_chars, gap, voice_file, read_ref_text(ctx, ref_text, ref_text_file),
                    trim_ref, no_voice)
    outputs = Outputs(output, format, dump_codes, srt, vtt, timestamps, play or (output is None and output_dir is None),
                      output_device, inputs=(config,))
    if phonemes:
        _refuse_with("--phonemes only prints, for -p TEXT, -f FILE or standard input", output=output,
                     output_dir=output_dir, format=format, dump_codes=dump_codes, srt=srt, vtt=vtt,
                     timestamps=timestamps, from_phonemes=from_phonemes or None)
        return print_phonemes(choice, manner, read_text(ctx, prompt, file))
    if explain:
        from tts_cli.cli.explain import print_prompt

        return print_prompt(choice, manner, read_text(ctx, prompt, file), console)
    if lines or output_dir is not None:
        from tts_cli.cli.lines import speak_lines

        if not lines:
            raise UsageError("--output-dir needs --lines; one text goes to -o FILE")
        _refuse_with("--lines reads texts from standard input and writes only audio", prompt=prompt, file=file,
                     dump_codes=dump_codes, srt=srt, vtt=vtt, timestamps=timestamps)
        return speak_lines(choice, manner, outputs, output_dir, console)
    if _is_interactive(prompt, file, output):
        _refuse_with("give -p TEXT, -f FILE or text on standard input with it",
                     dump_codes=dump_codes, srt=srt, vtt=vtt, timestamps=timestamps, format=format)
        from tts_cli.cli.repl import interact

        return interact(choice, manner, output_device, console)
    text = read_text(ctx, prompt, file)
    manner.pieces(text)  # refuses what cannot be divided
    if outputs.device is not None and not outputs.play:
        raise UsageError("--output-device needs --play when -o is given")
    inputs = [file, speaker_file, voice_file, model, mmproj]
    outputs = outputs.checked(inputs)
    clip = manner.read_clip(console)
    with one_interrupt(), Worker() as worker:
        engine = worker.call(ready, choice, manner, text, outputs, console)
        o.warn_unused(ctx, engine, console)
        if from_phonemes and (unknown := engine.unknown_symbols(text)):
            console.warning(f"symbols the model does not know are left out: {' '.join(unknown[:20])}")
        manner = worker.call(manner.voiced, engine, clip, console)
        return speak_text(engine, worker, manner, text, outputs, console)


def print_phonemes(choice: ModelChoice, manner: Manner, text: str) -> int:
    """`--phonemes`: one line on standard output, which --from-phonemes speaks. Needs no weights."""
    engine = choice.open(Console(quiet=True))
    request = manner.with_voice_file(engine).request
    with o.flags_named():
        print(engine.phonemes(text, request.voice, request.language))
    return 0


def print_devices() -> int:
    """`--list-devices`: a table on standard output, the default marked with a star."""
    from tts_cli.audio.play import output_devices

    devices = output_devices()
    if not devices:
        Console().note("no sound devices were found")
    for device in devices:
        star = "*" if device.is_default else " "
        print(f"{star}{device.index:>4}  {device.name}  ({device.host_api}, {device.default_rate:.0f} Hz)")
    return 0


def _refuse_options_before_a_verb(ctx: typer.Context) -> None:
    lost = [parameter.opts[0] for parameter in ctx.command.params if o.typed(ctx, parameter.name)]
    if lost:
        raise UsageError(f"{', '.join(lost)} before the verb {ctx.invoked_subcommand}: options of a verb come after it")


def _is_interactive(prompt: str | None, file: str | None, output: str | None) -> bool:
    nothing_given = prompt is None and file is None and output is None
    return nothing_given and sys.stdin is not None and sys.stdin.isatty()


def _refuse_with(reason: str, **given) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name.replace('_', '-')}: {reason}")
