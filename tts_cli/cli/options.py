"""The options that verbs share, in the groups `--help` shows.

What a request field means and which values it takes is written once, in the metadata of `SpeechRequest`; the options
here add the flag's names, a metavar with the unit, and how the default reads.
"""

from dataclasses import fields
from typing import Annotated

import typer

import tts_cli
from tts_cli.cli.config import use_config
from tts_cli.engine import CHUNK_FRAMES, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.flags import FLAGS
from tts_cli.flags import flags_named as flags_named
from tts_cli.model_choice import MAX_THREADS

_RULES = {f.name: f.metadata for f in fields(SpeechRequest) if f.metadata}


def _allowed(rule) -> str:
    low, high, above = rule["low"], rule["high"], rule["above"]
    if high is not None and high < 2**31:
        return f" ({low:g} to {high:g})"
    if above is not None:
        return f" (above {above:g})"
    return f" ({low:g} or more)" if low is not None else ""


def _request(field: str, *names: str, panel: str, default: str, metavar: str | None = None):
    rule = _RULES[field]
    return typer.Option(*names, metavar=metavar, help=rule["help"][0].upper() + rule["help"][1:] + _allowed(rule),
                        show_default=default, rich_help_panel=panel)


def _flag(*names: str, panel: str, help: str):
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default="off")


def _option(*names: str, panel: str, help: str, metavar: str, default: str | bool = False, **more):
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, show_default=default, **more)


Prompt = Annotated[str | None, _option(
    "--prompt", "-p", panel="Input", metavar="TEXT", default="none",
    help="Text to speak; - reads standard input")]
File = Annotated[str | None, _option(
    "--file", "-f", panel="Input", metavar="FILE", default="standard input when piped",
    help="UTF-8 text file to speak; - reads standard input")]
Config = Annotated[str | None, _option(
    "--config", panel="Input", metavar="NAME|FILE.toml", default="none", is_eager=True, callback=use_config,
    help="Take options from a preset or a TOML file; keys are option names, the command line wins")]

Model = Annotated[str | None, _option(
    "--model", "-m", panel="Model", metavar="TALKER.gguf|FOLDER|builtin|nano", default="the built-in voice, else nano",
    help="Talker GGUF of Qwen3-TTS, the folder of a Kokoro checkpoint, or what comes with packages")]
Mmproj = Annotated[str | None, _option(
    "--mmproj", "-mm", panel="Model", metavar="MMPROJ.gguf", default="the only mmproj*.gguf beside the talker",
    help="GGUF with code predictor, vocoder and speaker encoder")]
HfRepo = Annotated[str | None, _option(
    "--hf-repo", "-hf", panel="Model", metavar="OWNER/NAME[:QUANT]", default="none",
    help="Download the model from Hugging Face (once, then cached); quant Q8_0, then Q4_K_M, then the only one")]
Device = Annotated[str, _option(
    "--device", panel="Model", metavar="auto|cpu|cuda|cuda:N|mps", default=True, help="Where to compute")]
Dtype = Annotated[str, _option(
    "--dtype", panel="Model", metavar="auto|float32|bfloat16", default=True,
    help="Precision; auto is bfloat16 where that is faster. On the CPU, Qwen3-TTS multiplies quantised weights as they "
         "are stored, and bfloat16 only narrows wider ones")]
Threads = Annotated[int | None, _option(
    "--threads", "-t", panel="Model", metavar="N",
    default="OMP_NUM_THREADS, else physical cores", help=f"CPU threads (1 to {MAX_THREADS})")]
NoGraphs = Annotated[bool, _flag(
    "--no-graphs", panel="Model", help="On CUDA, start every kernel by itself instead of replaying graphs (slower)")]
GpuLayers = Annotated[str | None, _option(
    "-ngl", "--gpu-layers", panel="Model", metavar="N", default="none",
    help="Accepted for llama.cpp command lines and ignored: --device decides")]

Lang = Annotated[str, _request(
    "language", "--lang", "--tts-lang", panel="Voice", metavar="auto|NAME|CODE", default="auto")]
Voice = Annotated[str | None, _option(
    "--voice", "--speaker", panel="Voice", metavar="NAME|MIX|FILE", default="af_heart, or the model's own",
    help="Voice by name (tts voices list), a mix such as af_heart:0.7,am_michael:0.3, or a voice file")]
Speed = Annotated[float, _request("speed", "--speed", panel="Voice", metavar="X", default="1")]
Phonemes = Annotated[bool, _flag("--phonemes", panel="Voice", help="Print the phonemes of the text and stop (Kokoro)")]
FromPhonemes = Annotated[bool, _request("phonemes", "--from-phonemes", panel="Voice", default="off")]
SpeakerFile = Annotated[str | None, _option(
    "--speaker-file", "--tts-speaker-file", panel="Voice", metavar="CLIP", default="none",
    help="Clone the voice of this recording (WAV, FLAC, MP3, Ogg, Opus ...), a few seconds of clean speech")]
RefText = Annotated[str | None, _option(
    "--ref-text", panel="Voice", metavar="TEXT", default="none",
    help="What the --speaker-file recording says: clones it in context, closer than its sound alone")]
RefTextFile = Annotated[str | None, _option(
    "--ref-text-file", panel="Voice", metavar="FILE", default="none", help="The same from a UTF-8 text file")]
TrimRef = Annotated[bool, _flag(
    "--trim-ref", panel="Voice", help="Cut the recording after its last pause, so that it does not end inside a word")]
NoVoice = Annotated[bool, _flag(
    "--no-voice", panel="Voice",
    help="Let a Base model pick a voice instead of its built-in reference (undoes one set in --config)")]
Instruct = Annotated[str | None, _option(
    "--instruct", panel="Voice", metavar="TEXT", default="none",
    help="How to speak, or with VoiceDesign what voice to speak with, in words (CustomVoice, VoiceDesign)")]
Explain = Annotated[bool, _flag(
    "--explain", panel="Voice", help="Print the assembled prompt as a table and stop (Qwen3-TTS)")]
TextMode = Annotated[str | None, _request(
    "text_mode", "--text-mode", panel="Voice", metavar="full|streaming",
    default="what the file says, else streaming for Base models, full for CustomVoice and VoiceDesign")]

Temp = Annotated[float | None, _request(
    "temperature", "--temp", panel="Sampling", metavar="X", default="the model's, usually 0.9")]
TopK = Annotated[int | None, _request(
    "top_k", "--top-k", panel="Sampling", metavar="N", default="the model's, usually 50")]
TopP = Annotated[float | None, _request(
    "top_p", "--top-p", panel="Sampling", metavar="X", default="the model's, usually 1")]
RepeatPenalty = Annotated[float | None, _request(
    "repeat_penalty", "--repeat-penalty", panel="Sampling", metavar="X", default="the model's, usually 1.05")]
SubTemp = Annotated[float | None, _request(
    "sub_temperature", "--sub-temp", panel="Sampling", metavar="X", default="the model's, usually 0.9")]
SubTopK = Annotated[int | None, _request(
    "sub_top_k", "--sub-top-k", panel="Sampling", metavar="N", default="the model's, usually 50")]
SubTopP = Annotated[float | None, _request(
    "sub_top_p", "--sub-top-p", panel="Sampling", metavar="X", default="the model's, usually 1")]
Greedy = Annotated[bool, _request("greedy", "--greedy", panel="Sampling", default="off")]
NoGreedy = Annotated[bool, _flag("--no-greedy", panel="Sampling", help="Sample: undoes a greedy set in --config")]
Seed = Annotated[int | None, _request(
    "seed", "--seed", "-s", panel="Sampling", metavar="N", default="random, printed at the end")]
MaxFrames = Annotated[int | None, _request(
    "max_frames", "--max-frames", "-n", panel="Sampling", metavar="FRAMES", default="grows with the text")]

MaxChars = Annotated[int | None, _option(
    "--max-chars", panel="Long text", metavar="N", default="200",
    help="Longest utterance in characters: longer text is spoken in several, whole sentences together where they fit")]
Gap = Annotated[float | None, _option(
    "--gap", panel="Long text", metavar="SECONDS", default="0.25, at paragraphs 0.6",
    help="Silence between two utterances")]
Srt = Annotated[str | None, _option(
    "--srt", panel="Long text", metavar="FILE.srt", default="none",
    help="Write subtitles: one per utterance, with Kokoro shorter ones")]
Vtt = Annotated[str | None, _option(
    "--vtt", panel="Long text", metavar="FILE.vtt", default="none", help="Write subtitles as WebVTT")]
Timestamps = Annotated[str | None, _option(
    "--timestamps", panel="Long text", metavar="FILE.json", default="none",
    help="Write when each utterance, and with Kokoro each word, begins and ends, in seconds")]

Output = Annotated[str | None, _option(
    "--output", "-o", panel="Output", metavar="FILE|-", default="none",
    help="Audio file to write: .wav .flac .mp3 .ogg .opus .pcm .f32; - streams WAV to standard output; "
         "without it the speech is played")]
Format = Annotated[str | None, _option(
    "--format", panel="Output", metavar="wav|wav24|wavf32|flac|mp3|ogg|opus|pcm|f32", default="from the extension",
    help="Audio format; wav is 16-bit")]
DumpCodes = Annotated[str | None, _option(
    "--dump-codes", panel="Output", metavar="FILE.npy", default="none",
    help="Also write the codes, int32 (frames, 16)")]
ChunkFrames = Annotated[str | None, _request(
    "chunk_frames", "--chunk-frames", panel="Output", metavar="N,N,...", default="1,1,2,4,8,12")]
Lines = Annotated[bool, _flag(
    "--lines", panel="Output", help="Speak every line of standard input as it arrives, until its end")]
OutputDir = Annotated[str | None, _option(
    "--output-dir", panel="Output", metavar="DIR", default="none",
    help="With --lines: write a file per line, numbered like the lines (0001.wav ...)")]
Play = Annotated[bool, _flag("--play", panel="Sound", help="Play what -o writes, too")]
OutputDevice = Annotated[str | None, _option(
    "--output-device", panel="Sound", metavar="NAME|INDEX", default="the system's default",
    help="Sound device to play on: a number or a part of a name that --list-devices shows")]
ListDevices = Annotated[bool, _flag("--list-devices", panel="Sound", help="List the sound devices and stop")]
Quiet = Annotated[bool, _flag("--quiet", "-q", panel="Output", help="Print nothing but errors")]
Verbose = Annotated[bool, _flag("--verbose", "-v", panel="Output", help="Print what is going on; tracebacks too")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tts {tts_cli.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option(
    "--version", is_eager=True, callback=_print_version, show_default=False, rich_help_panel="Output",
    help="Print the version and stop")]


def parse_chunk_frames(given: str | None) -> tuple[int, ...]:
    """"1,1,2" as numbers; the schedule of the engine when nothing was given. Raises `UsageError`."""
    if given is None:
        return CHUNK_FRAMES
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError:
        raise UsageError(f"--chunk-frames: {given!r} is not a list of whole numbers such as 1,2,4,12") from None


def typed(ctx: typer.Context, name: str) -> bool:
    """Whether the parameter was typed on the command line, rather than left alone or set by --config."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def warn_unused(ctx: typer.Context, engine, console) -> None:
    """Say which of the typed options make no difference to this engine."""
    unused = [flag for field, flag in FLAGS.items()
              if field in engine.unused and typed(ctx, flag.removeprefix("--").replace("-", "_"))]
    if unused:
        console.warning(f"{', '.join(unused)}: no effect with this model")


def chosen_greedy(ctx: typer.Context, greedy: bool, no_greedy: bool) -> bool:
    """Whether to be greedy: a temperature that was typed beats a greedy that was not. Raises `UsageError`."""
    if not only_one(ctx, {"greedy": greedy, "no_greedy": no_greedy})["greedy"]:
        return False
    for name in ("temp", "sub_temp"):
        if typed(ctx, name):
            if typed(ctx, "greedy"):
                raise UsageError(f"--greedy and --{name.replace('_', '-')} exclude each other; give one of them")
            return False
    return True


def only_one(ctx: typer.Context, values: dict[str, str | bool | None]) -> dict[str, str | bool | None]:
    """Of options that exclude each other keep the one given; one that was typed beats one from --config.

    Keys are parameter names. Raises `UsageError` when two are left.
    """
    given = [name for name, value in values.items() if value not in (None, False)]
    if len(given) > 1:
        given = [name for name in given if typed(ctx, name)] or given
    if len(given) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"{flags} exclude each other; give one of them")
    return {name: value if name in given else None for name, value in values.items()}
