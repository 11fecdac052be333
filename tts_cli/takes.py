"""An utterance kept to be heard again or written to a file, in flat memory however long it is."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO

from tts_cli.engine import SpeechResult
from tts_cli.errors import UsageError
from tts_cli.repl_commands import Settings

TAKE_IN_MEMORY = 32 << 20  # bytes of float32 samples, 6 minutes; more goes to a temporary file
BLOCK_SAMPLES = 1 << 16


def _temporary_file() -> BinaryIO:
    return SpooledTemporaryFile(TAKE_IN_MEMORY)  # noqa: SIM115 - closed with the take


@dataclass
class Take:
    """An utterance and its samples. `result` is None until it ended, and stays so when it failed."""

    text: str
    settings: Settings
    sample_rate: int
    samples: int = 0
    result: SpeechResult | None = None
    underruns: int = 0
    _file: BinaryIO = field(default_factory=_temporary_file, repr=False)

    @property
    def whole(self) -> bool:
        return self.result is not None and self.result.finish_reason != "cancelled"

    def add(self, samples) -> None:
        self._file.write(samples.astype("<f4").tobytes())
        self.samples += len(samples)

    def blocks(self) -> Iterator:
        """The samples so far, float32, piece by piece."""
        import numpy as np

        self._file.seek(0)
        while block := self._file.read(4 * BLOCK_SAMPLES):
            yield np.frombuffer(block, "<f4")

    def save(self, path: Path, inputs=()) -> None:
        """Write the samples so far as the format the extension names. Raises `UsageError` or `TtsError`."""
        from tts_cli.audio.write import check_output, choose_format, open_writer

        if str(path) == "-":
            raise UsageError("standard output is not for audio here; name a file such as out.wav")
        format = choose_format(path)
        check_output(path, inputs=inputs)
        with open_writer(path, format, self.sample_rate) as writer:
            for block in self.blocks():
                writer.write(block)


def typed_path(argument: str) -> Path:
    """A path as people type or drop it: in quotes, or with ~."""
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "'\"":
        argument = argument[1:-1]
    return Path(argument).expanduser()
