"""How to speak, apart from what: the request without its text, whose voice, and how long text is divided."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tts_cli.engine import Engine, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.flags import flags_named
from tts_cli.notices import Notices
from tts_cli.utterances import PARAGRAPH_GAP, utterances

VOICE_FILES = (".pt", ".bin", ".npy", ".npz", ".safetensors")
CLIP_RATE = 24000  # Hz, what clips are read at
DEFAULT_VOICE = ("no voice given, the built-in reference voice speaks (--speaker-file CLIP clones another, "
                 "--no-voice leaves the choice to the model)")


@dataclass(frozen=True)
class Manner:
    """`max_chars`, `gap`: None for the defaults. `ref_text`: what the recording says, to clone it in context."""

    request: SpeechRequest
    speaker_file: str | None = None
    max_chars: int | None = None
    gap: float | None = None
    voice_file: Path | None = None
    ref_text: str | None = None
    trim_ref: bool = False
    no_voice: bool = False

    def __post_init__(self):
        if self.speaker_file is None and (self.ref_text is not None or self.trim_ref):
            raise UsageError("--ref-text, --ref-text-file and --trim-ref go with --speaker-file CLIP")

    def pieces(self, text: str):
        """The utterances of a text, made as they are needed. Raises `UsageError` when there is nothing to speak."""
        given = {} if self.max_chars is None else {"max_chars": self.max_chars}
        if self.gap is not None:  # a paragraph's pause is never the shorter one
            given |= {"gap": self.gap, "paragraph_gap": max(self.gap, PARAGRAPH_GAP)}
        with flags_named():
            return utterances(text, **given)

    def read_clip(self, told: Notices):
        """Samples of the voice to clone, or None."""
        if self.speaker_file is None:
            return None
        clip = read_voice(self.speaker_file, told.warning)
        if self.trim_ref:
            from tts_cli.audio.reference import trim_to_pause

            clip = trim_to_pause(clip, CLIP_RATE)
        if self.ref_text is not None:
            from tts_cli.audio.reference import transcript_warning

            if warning := transcript_warning(self.ref_text, len(clip) / CLIP_RATE):
                told.warning(warning)
        return clip

    def check_cloning(self, engine: Engine) -> None:
        """Refuse before any weight is read what the model cannot clone. Raises `UsageError`."""
        if self.speaker_file is not None:
            engine.check_cloning(self.ref_text is not None)

    def check(self, engine: Engine, text: str) -> None:
        """Refuse before any weight is read what the model cannot do. Raises `UsageError` or `ModelFileError`."""
        from tts_cli.reading import from_first_spoken

        self.check_cloning(engine)
        from_first_spoken(engine, self.with_voice_file(engine).request, self.pieces(text))

    def with_voice_file(self, engine: Engine) -> "Manner":
        """With the voice that is read from a file, when there is one. Raises `UsageError` or `ModelFileError`."""
        if self.voice_file is None:
            return self
        return replace(self, request=replace(self.request, voice=engine.voice_from_file(self.voice_file)))

    def voiced(self, engine: Engine, clip, told: Notices, say: Callable[[str], None] | None = None) -> "Manner":
        """With the voice of the clip, of the file, or of the model's own reference clip where it needs one.

        To be called on the thread that owns the model. `say` tells that the last was taken; default: a note.
        """
        if clip is None and self.needs_a_voice(engine):
            (say or told.note)(DEFAULT_VOICE)
            own = replace(self, speaker_file=str(engine.default_clip))
            return own.voiced(engine, own.read_clip(told), told)
        if clip is None:
            return self.with_voice_file(engine)
        voice = engine.voice_from_clip(clip, Path(self.speaker_file).stem, self.ref_text)
        return replace(self, request=replace(self.request, voice=voice))

    def needs_a_voice(self, engine: Engine) -> bool:
        """Whether the model's own reference clip speaks."""
        return (engine.default_clip is not None and self.request.voice is None and self.voice_file is None
                and not self.no_voice)


def name_or_file(voice: str | None) -> tuple[str | None, Path | None]:
    """What --voice says: the name or mix of a voice, or a voice file."""
    if voice is not None and (Path(voice).suffix.lower() in VOICE_FILES or "/" in voice or os.sep in voice):
        return None, Path(voice).expanduser()
    return voice, None


def read_voice(clip: str | Path, warn: Callable[[str], None]):
    """Samples of a reference clip; tells what is not right with one that can be used all the same."""
    from tts_cli.audio.read import clip_warnings, read_clip

    samples = read_clip(clip)
    for warning in clip_warnings(samples):
        warn(warning)
    return samples
