"""One run of the bare command: the engine made ready, the one generator consumed, and how it went told."""


from tts_cli.audio import shown
from tts_cli.background import Worker
from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.cli.sinks import Outputs, Sinks, open_sinks
from tts_cli.engine import CancelToken, Engine, SpeechRequest, not_read
from tts_cli.errors import UsageError
from tts_cli.manner import Manner
from tts_cli.model_choice import ModelChoice
from tts_cli.utterances import estimate_seconds

EXIT_LOST = 1
EXIT_CUT = 3
NAMES = {None: "played", "-": "standard output"}


def ready(choice: ModelChoice, manner: Manner, text: str, outputs: Outputs, console: Console) -> Engine:
    """The engine, loaded, after everything that could be refused was."""
    engine = choice.open(console)
    outputs.check_files(engine.paths)
    if outputs.codes is not None and "codes" in engine.unused:
        raise UsageError("--dump-codes: this model speaks without codes")
    with o.flags_named():
        manner.check(engine, text)
    choice.tell(console, engine)
    engine.load()
    return engine


def speak_text(engine: Engine, worker: Worker, manner: Manner, text: str, outputs: Outputs, console: Console) -> int:
    """Consume the one generator into everything asked for. Returns the exit code."""
    from tts_cli.reading import Reading

    cancel = CancelToken()
    with open_sinks(outputs, engine.sample_rate, console, estimate_seconds(text)) as sinks:
        reading = Reading(engine, manner.request, manner.pieces(text), cancel, outputs.together(engine))
        with console.audio_progress() as progress, worker.ahead(reading, cancel) as chunks:
            ended, seconds = 0, 0.0
            for chunk in chunks:
                sinks.write(chunk, cancel)
                while ended < len(reading.marks) and reading.marks[ended].end <= seconds:
                    ended += 1
                progress.advance(chunk.samples.size / chunk.sample_rate, ended + 1)
                seconds += chunk.samples.size / chunk.sample_rate
        sinks.finish(reading.marks, reading.words)
        sinks.drain(cancel)
    return report(reading, manner.request, sinks, console, NAMES.get(outputs.path, outputs.path))


def report(reading, request: SpeechRequest, sinks: Sinks, console: Console, where: str) -> int:
    """Say how it went, on stderr. Returns the exit code."""
    result = reading.result
    if result.left_out:
        console.warning(not_read(result.left_out))
    cut = result.finish_reason == "limit"
    if cut and len(reading.marks) > 1 and reading.cut:
        numbers = ", ".join(str(number + 1) for number in reading.cut)
        console.warning(f"truncated in utterance {numbers}: the model had not ended the speech at the automatic budget")
    elif cut:
        advice = "raise -n to let it go on" if request.max_frames else "give -n FRAMES to allow more"
        console.warning(f"truncated after {result.frames} frames ({result.audio_seconds:.2f} s): the model had not "
                        f"ended the speech; {advice}")
    parts = f", {len(reading.marks)} utterances" if len(reading.marks) > 1 else ""
    console.note(f"{shown(where)}: {result}{parts}")
    if sinks.outputs.play:
        console.detail(f"underruns: {sinks.underruns}")
    if sinks.lost is not None:
        return EXIT_LOST
    return EXIT_CUT if cut and request.max_frames is None else 0
