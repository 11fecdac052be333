"""What request fields are called by a person who typed them: the names of the command line's options."""

import contextlib
from collections.abc import Iterator

from tts_cli.errors import UsageError

FLAGS = {
    "language": "--lang", "text_mode": "--text-mode", "temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p",
    "repeat_penalty": "--repeat-penalty", "sub_temperature": "--sub-temp", "sub_top_k": "--sub-top-k",
    "sub_top_p": "--sub-top-p", "seed": "--seed", "max_frames": "--max-frames", "chunk_frames": "--chunk-frames",
    "max_chars": "--max-chars", "gap": "--gap", "voice": "--voice", "instruct": "--instruct",
    "greedy": "--greedy", "speed": "--speed", "phonemes": "--from-phonemes",
}


@contextlib.contextmanager
def flags_named() -> Iterator[None]:
    """Let a refused request field be called by its flag."""
    try:
        yield
    except UsageError as error:
        field, colon, rest = str(error).partition(":")
        if field not in FLAGS:
            raise
        raise UsageError(FLAGS[field] + colon + rest) from None
