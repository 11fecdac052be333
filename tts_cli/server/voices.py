"""Which voice a request means. Only names that the engine lists get through: a name never becomes a path."""

from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.server.errors import shown
from tts_cli.server.schemas import STOCK_VOICES


def chosen_voice(engine: Engine, name: str | None) -> str | None:
    """The voice or mix as the engine calls it; None for the default. Raises `UsageError` with the list."""
    if name is None:
        return None
    names = engine.voice_names
    known = {voice.lower(): voice for voice in names} | {voice: voice for voice in names}  # as written, or in any case
    if name.strip().lower() in ("default", *STOCK_VOICES) and name.strip().lower() not in known:
        return None
    parts = [_part(part) for part in name.split(",")]
    for voice, _ in parts:
        if voice not in known and voice.lower() not in known:
            raise UsageError(f"voice: {shown(voice)} is unknown; the voices here: {', '.join(['default', *names])}")
    return ",".join(known.get(voice, known.get(voice.lower())) + weight for voice, weight in parts)


def _part(part: str) -> tuple[str, str]:
    """`NAME:0.7` as (NAME, ":0.7"), `NAME` as (NAME, "")."""
    name, colon, weight = part.rpartition(":")
    return (name.strip(), colon + weight.strip()) if colon else (part.strip(), "")
