"""Where the audio of a reading goes: file or pipe, sound device, codes, subtitles. All are fed the same chunks."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tts_cli.cli.console import Console
from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.files import whole_file


@dataclass(frozen=True)
class Outputs:
    """What was asked for. `path` None writes no audio, `device` matters when `play` is set, and `inputs` are files that
    no output may replace, besides those that are passed to the checks."""

    path: str | None = None
    format: str | None = None
    codes: str | None = None
    srt: str | None = None
    vtt: str | None = None
    timestamps: str | None = None
    play: bool = False
    device: str | None = None
    inputs: tuple[str | Path | None, ...] = ()

    def together(self, engine: Engine) -> int:
        """How many utterances to make side by side: one where somebody may listen while the speech is made."""
        return 1 if self.play or self.path == "-" else engine.together

    def checked(self, inputs: Sequence[str | Path | None]) -> "Outputs":
        """With the format filled in. Refuses what could not be written, and a missing sound device, early."""
        from tts_cli.audio.write import choose_format

        if self.path is None and self.format is not None:
            raise UsageError("--format needs an output: give -o FILE, or -o - for standard output")
        outputs = self if self.path is None else replace(self, format=choose_format(self.path, self.format))
        outputs.check_files(inputs)
        if self.play:
            from tts_cli.audio.play import check_output_device

            check_output_device(self.device)
        return outputs

    def check_files(self, inputs: Sequence[str | Path | None]) -> None:
        """Refuse files that cannot be written or are `inputs` or each other."""
        from tts_cli.audio.write import check_output

        named = {"--output": self.path, "--dump-codes": self.codes, "--srt": self.srt, "--vtt": self.vtt,
                 "--timestamps": self.timestamps}
        # 0 is standard input, which may be a file as well.
        reads = [0, *(Path(read) for read in (*inputs, *self.inputs) if read and read != "-")]
        seen = {}
        for flag, path in named.items():
            if path is None:
                continue
            if path == "-" and flag != "--output":
                raise UsageError(f"{flag}: standard output is for audio; give a file name")
            if (other := seen.setdefault(os.path.realpath(path), flag)) != flag:
                raise UsageError(f"{flag} and {other} name the same file")
            check_output(path, inputs=reads)


class Sinks:
    """The open outputs of one reading: `with open_sinks(...) as sinks`, then `write` per chunk and `finish` at the end.

    On an exception the sound stops first and no file appears.
    """

    def __init__(self, outputs: Outputs, sample_rate: int, console: Console, expected_seconds: float | None):
        self.outputs = outputs
        self.lost: Exception | None = None  # why the playing ended early
        self.underruns = 0
        self._console = console
        self._codes = []
        self._files = contextlib.ExitStack()
        self._player = self._writer = self._codes_file = None
        try:
            if outputs.codes:
                self._codes_file = self._files.enter_context(whole_file(outputs.codes))
            if outputs.path is not None:
                from tts_cli.audio.write import open_writer

                self._writer = self._files.enter_context(open_writer(outputs.path, outputs.format, sample_rate))
            if outputs.play:
                from tts_cli.audio.play import Player

                self._player = Player(sample_rate, outputs.device, expected_seconds=expected_seconds)
                self._player.__enter__()
        except BaseException as error:
            self.abort(error)
            raise

    def write(self, chunk, cancel=None) -> None:
        """Pass a chunk on. Raises `TtsError`; a lost device is fatal only when nothing is written."""
        if self._writer is not None:
            self._writer.write(chunk.samples)
        if self._codes_file is not None and chunk.codes is not None:
            self._codes.append(chunk.codes)
        if self._player is not None and chunk.samples.size:
            with self._device_may_go():
                self._player.write(chunk.samples, cancel)

    def finish(self, marks, words=()) -> None:
        """Complete the files; the end of the sound is still to be waited for, by `drain`."""
        if self._codes_file is not None:
            import numpy as np

            np.save(self._codes_file,
                    np.concatenate(self._codes).astype(np.int32) if self._codes else np.zeros((0, 16), np.int32))
        self._files.close()
        if self.outputs.srt or self.outputs.vtt:
            from tts_cli.subtitles import cues, write_srt, write_vtt

            shown = cues(words) if words else marks
            for path, write in ((self.outputs.srt, write_srt), (self.outputs.vtt, write_vtt)):
                if path:
                    write(shown, path)
        if self.outputs.timestamps:
            from tts_cli.subtitles import write_timestamps

            write_timestamps(marks, words, self.outputs.timestamps)

    def drain(self, cancel=None) -> None:
        """Wait until the last sample was heard, and close the device."""
        if self._player is not None:
            with self._device_may_go():
                self._player.drain(cancel)
        self._close_player(None)

    def abort(self, error: BaseException) -> None:
        """Silence at once, then remove what is half written."""
        if self._player is not None:
            self._player.stop()
        self._files.__exit__(type(error), error, error.__traceback__)
        self._close_player(error)

    @contextlib.contextmanager
    def _device_may_go(self) -> Iterator[None]:
        from tts_cli.audio.play import DeviceLost

        try:
            yield
        except DeviceLost as error:
            self.lost = error
            self._close_player(error)
            if self._writer is None:
                raise
            self._console.warning(f"{error}; the file goes on being written")

    def _close_player(self, error: BaseException | None) -> None:
        player, self._player = self._player, None
        if player is not None:
            self.underruns = player.underruns
            player.__exit__(None if error is None else type(error), error, None)


@contextlib.contextmanager
def open_sinks(outputs: Outputs, sample_rate: int, console: Console,
               expected_seconds: float | None = None) -> Iterator[Sinks]:
    """Sinks that are aborted when the block raises."""
    sinks = Sinks(outputs, sample_rate, console, expected_seconds)
    try:
        yield sinks
    except BaseException as error:
        sinks.abort(error)
        raise
