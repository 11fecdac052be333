"""The interactive session: lines come in, speech goes out, on one loaded engine. Knows nothing of terminals.

Three threads: the caller's hands in lines and stops what is said, and never waits; one takes the lines in turn, plays
and answers; one runs the model. So the prompt is there before the model is, and stays while it speaks.
"""

import contextlib
import secrets
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tts_cli.background import Worker, wait
from tts_cli.engine import CancelToken, Engine, not_read
from tts_cli.errors import TtsError, UsageError
from tts_cli.repl_commands import COMMANDS, SETTINGS, Command, Settings, change, help_lines, parse, show
from tts_cli.takes import Take, typed_path
from tts_cli.text import clean_text
from tts_cli.utterances import estimate_seconds

if TYPE_CHECKING:  # numpy is not needed for the prompt
    from tts_cli.voices import Voice

VOICE_FILES = (".pt", ".bin", ".npy", ".npz", ".safetensors")
ASK_THE_ENGINE = ("lang", "text-mode", "speed", "from-phonemes")  # settings whose values depend on the model


@dataclass(frozen=True)
class Needs:
    """What a session stands on; tests put their own in.

    open_player   (sample rate, expected seconds) -> a Player
    pieces        (text, settings) -> utterances
    read_clip     path -> samples of a recording
    """

    open_player: Callable
    pieces: Callable
    read_clip: Callable


class Session:
    """`submit` lines, `stop` what is being said, `close` at the end: none of them waits for the speech.

    engine    a future of the loaded engine, made on `model_worker`
    say       prints a line; called from several threads
    voice     a future of the voice to begin with; there when `engine` is
    """

    def __init__(self, engine: "Future[Engine]", model_worker: Worker, settings: Settings, needs: Needs,
                 say: Callable[[str], None], *, voice: "Future[Voice] | None" = None, quiet: bool = False,
                 verbose: bool = False):
        self.settings = settings
        self.last: Take | None = None
        self._engine, self._model_worker, self._needs = engine, model_worker, needs
        self._say, self._quiet, self._verbose = say, quiet, verbose
        self._voices: dict[str, Voice] = {}
        self._turns = Worker()
        self._waiting: list[Future] = []
        self._round = 0  # grows with every stop: texts of an earlier round are not spoken any more
        self._cancel: CancelToken | None = None
        self._player = None
        self._told_no_sound = False
        self._spoken, self._spoken_seconds = 0, 0.0
        if voice is not None:  # before any line; nothing that Ctrl-C could stop
            self._turns.submit(self._guarded, self._use_first, voice)

    # ---- for the prompt: none of these waits -----------------------------------------------------------------------

    def submit(self, line: str) -> bool:
        """Take a line. False when the session is to end."""
        try:
            given = parse(line)
        except UsageError as error:
            self._error(error)
            return True
        if isinstance(given, Command) and COMMANDS[given.name].at_once:
            if given.name == "quit":
                return False
            self._guarded(self._command, given)
        elif given is not None:
            self._waiting = [turn for turn in self._waiting if not turn.done()]
            self._waiting.append(self._turns.submit(self._guarded, self._turn, given, self._round))
        return True

    @property
    def busy(self) -> bool:
        """Whether a line is being worked on or waits."""
        return any(not turn.done() for turn in self._waiting)

    @property
    def voices(self) -> list[str]:
        """Names for /voice: those of the model, when it is there, and those used before."""
        ready = self._engine.done() and not self._engine.exception()
        return sorted({*self._voices, *(getattr(self._engine.result(), "voice_names", ()) if ready else ())})

    @property
    def languages(self) -> list[str]:
        """Empty until the model is there."""
        ready = self._engine.done() and not self._engine.exception()
        return list(getattr(self._engine.result(), "languages", ())) if ready else []

    def stop(self) -> bool:
        """Silence now; waiting texts are forgotten. Whether there was anything to stop."""
        stopped = self.busy
        self._round += 1
        cancel, player = self._cancel, self._player
        if cancel is not None:
            cancel.cancel()
        if player is not None:
            player.stop()
        return stopped

    def wait(self) -> None:
        """Until every line was worked on."""
        for turn in list(self._waiting):
            wait(turn)

    def close(self) -> None:
        self.stop()
        self._turns.close()

    # ---- on the thread that takes the lines in turn ----------------------------------------------------------------

    def _guarded(self, step: Callable, *arguments) -> None:
        try:
            step(*arguments)
        except TtsError as error:
            self._error(error)
        except Exception as error:  # whatever one line does, the session goes on
            if self._verbose:
                self._say(traceback.format_exc().rstrip())
            self._error(f"{type(error).__name__}: {error}")

    def _error(self, error: object) -> None:
        if self._engine.done() and error is self._engine.exception():
            return  # whoever runs the session tells it, and ends
        self._say("error: " + " ".join(str(error).split()))

    def _turn(self, given: Command | str, round: int) -> None:
        speaks = isinstance(given, str) or given.name == "again"
        if speaks and round != self._round:
            return
        if isinstance(given, Command):
            self._command(given, round)
        else:
            self._speak(clean_text(given), self.settings, round)

    def _command(self, command: Command, round: int | None = None) -> None:
        name, argument = command.name, command.argument
        if name in SETTINGS:  # lang, seed and temp have a command of their own
            self._change(name, argument)
        elif name == "again":
            self._again(round)
        else:
            method = getattr(self, f"_do_{name}")
            method(*((argument,) if COMMANDS[name].argument else ()))

    def _speak(self, text: str, settings: Settings, round: int) -> None:
        from tts_cli.reading import Reading

        pieces = self._needs.pieces(text, settings)
        engine = wait(self._engine)
        seed = secrets.randbits(32) if settings.request.seed is None else settings.request.seed
        request = replace(settings.request, seed=seed)
        take = Take(text, replace(settings, request=request), engine.sample_rate)
        with self._stoppable(round) as cancel, self._sound(take, cancel) as play:
            reading = Reading(engine, request, pieces, cancel)
            with self._model_worker.ahead(reading, cancel) as chunks:
                for chunk in chunks:
                    self.last = take  # only now: a refused text leaves the one before in place
                    take.add(chunk.samples)
                    play(chunk.samples)
            take.result = reading.result
        self._spoken += 1
        self._spoken_seconds += take.result.audio_seconds
        if take.result.left_out:
            self._say(not_read(take.result.left_out))
        if not self._quiet:
            self._say(str(take.result))

    def _again(self, round: int) -> None:
        take = self._last_take()
        if not take.whole:  # stopped half way: make it again, the same take
            self._speak(take.text, take.settings, round)
            return
        with self._stoppable(round) as cancel, self._sound(take, cancel) as play:
            for block in take.blocks():
                if not cancel.cancelled:
                    play(block)

    @contextlib.contextmanager
    def _stoppable(self, round: int) -> Iterator[CancelToken]:
        cancel = self._cancel = CancelToken()
        if round != self._round:  # stopped between the check and here
            cancel.cancel()
        try:
            yield cancel
        finally:
            self._cancel = None

    @contextlib.contextmanager
    def _sound(self, take: Take, cancel: CancelToken) -> Iterator[Callable]:
        """A function that plays samples, and nothing without a device; the end of the sound is waited for."""
        from tts_cli.audio.play import DeviceLost

        player = self._open_player(take)
        if player is None:
            yield lambda samples: None
            return

        def play(samples) -> None:
            if self._player is not None and not cancel.cancelled:
                try:
                    player.write(samples, cancel)
                except DeviceLost as error:
                    self._player = None
                    self._error(error)

        with player:
            self._player = player
            if cancel.cancelled:  # stopped while the device was being opened
                player.stop()
            try:
                yield play
                if self._player is not None and not cancel.cancelled:
                    player.drain(cancel)
            except DeviceLost as error:
                self._error(error)
            finally:
                self._player = None
                take.underruns = player.underruns

    def _open_player(self, take: Take):
        try:
            return self._needs.open_player(take.sample_rate, estimate_seconds(take.text))
        except TtsError as error:
            if not self._told_no_sound:
                self._told_no_sound = True
                self._say(f"no sound: {error}. The session goes on: /save FILE writes the last utterance")
            return None

    # ---- commands --------------------------------------------------------------------------------------------------

    def _change(self, key: str, value: str) -> None:
        settings = change(self.settings, key, value)
        if key in ASK_THE_ENGINE or self._engine.done():
            wait(self._engine).check(replace(settings.request, text="a"))
        self.settings = settings
        self._say(f"{key} {show(settings)[key]}")

    def _do_set(self, argument: str) -> None:
        key, _, value = argument.partition(" ")
        if not key:
            self._say("\n".join(f"{name:<16}{shown}" for name, shown in show(self.settings).items()))
        elif not value.strip():
            raise UsageError(f"/set {key} needs a value" if key in show(self.settings) else
                             f"{key!r} is not a setting; there are {', '.join(show(self.settings))}")
        else:
            self._change(key, value.strip())

    def _do_voice(self, argument: str) -> None:
        if argument == "none":
            self._use(None)
        elif argument in self._voices:
            self._use(self._voices[argument])
        elif typed_path(argument).exists():
            argument = self._voice_of(typed_path(argument))
        else:
            self._use_named(argument)
        self._say(f"voice {argument}")

    def _voice_of(self, path: Path) -> str:
        """Use the voice in a file, or of a recording, and know it by the file's name from now on."""
        if path.suffix.lower() in VOICE_FILES:
            voice = wait(self._engine).voice_from_file(path)
        else:
            clip = self._needs.read_clip(path)
            voice = self._model_worker.call(wait(self._engine).voice_from_clip, clip, path.stem)
        self._voices[path.stem] = voice
        self._use(voice)
        return path.stem

    def _use_named(self, name: str) -> None:
        engine = wait(self._engine)
        if not getattr(engine, "voice_names", ()):
            known = ", ".join(["none", *self.voices])
            raise UsageError(f"{name!r} is neither a file nor a known voice: {known}")
        engine.check(replace(self.settings.request, text="a", voice=name))
        self._use(name)

    def _use_first(self, voice: "Future[Voice]") -> None:
        wait(self._engine)
        first = wait(voice)
        if first is None or isinstance(first, str):  # the model's own, or one it knows by name
            return
        self._voices[first.name] = first
        self._use(first)

    def _use(self, voice: "Voice | str | None") -> None:
        self.settings = replace(self.settings, request=replace(self.settings.request, voice=voice))

    def _do_save(self, argument: str) -> None:
        take, path = self._last_take(), typed_path(argument)
        take.save(path, wait(self._engine).paths)
        stopped = "" if take.whole else ", as far as it was made"
        self._say(f"{path}: {take.samples / take.sample_rate:.2f} s of audio{stopped}")

    def _last_take(self) -> Take:
        if self.last is None:
            raise UsageError("nothing was spoken yet")
        return self.last

    def _do_stop(self) -> None:
        if not self.stop():
            self._say("nothing is being spoken")

    def _do_stats(self) -> None:
        take = self.last
        if take is None:
            self._say("nothing was spoken yet")
            return
        if take.result is None:
            self._say(f"speaking: {take.samples / take.sample_rate:.2f} s so far")
        else:
            self._say(f"last: {take.result}, peak {take.result.peak:.2f}, underruns {take.underruns}")
        self._say(f"session: {self._spoken} utterances, {self._spoken_seconds:.1f} s of audio")

    def _do_info(self) -> None:
        if not self._engine.done():
            self._say("the model is being loaded")
        else:
            self._say("\n".join(self._engine.result().describe()))
        voice = self.settings.request.voice
        changed = [f"{key} {value}" for key, value in show(self.settings).items()
                   if value != show(Settings(type(self.settings.request)("")))[key]]
        self._say(f"voice: {getattr(voice, 'name', voice) or 'none'}; settings: {', '.join(changed) or 'defaults'}")

    def _do_voices(self) -> None:
        clones = self._engine.done() and getattr(self._engine.result(), "default_clip", None) is not None
        self._say(" ".join(["none", *self.voices]) + (" (/voice FILE clones another)" if clones else ""))

    def _do_help(self) -> None:
        self._say("\n".join(help_lines()))
