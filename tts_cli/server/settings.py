"""What a server allows, in one place: the command line's options and the checks of requests read it here."""

from dataclasses import dataclass

from tts_cli.audio.read import MAX_SECONDS
from tts_cli.errors import UsageError
from tts_cli.utterances import GAP, MAX_CHARS

MIB = 1 << 20
# Frames per chunk where requests take turns: nobody waits for the sound of more than 4 frames of another.
TURN_FRAMES = (1, 1, 2, 4)


@dataclass(frozen=True)
class ServerSettings:
    """Limits of one server.

    parallel         requests advanced in turn; `queue`: how many more may wait
    max_text         characters of a request's text, counted before anything is done with it
    max_body         bytes of a request, of its clip `max_clip_bytes`, which plays at most `max_clip_seconds`
    ahead_seconds    of audio made for a client that does not take it; then others have the turn
    write_timeout    seconds after which a client that takes nothing is cut off
    read_timeout     seconds a client has to send a request's head, and then for every 64 KiB of its body
    idle_timeout     seconds a WebSocket may stay without a message
    api_key          None: everybody may ask
    cors_origins     pages of other origins that may ask; ("*",) all
    local_names      answer only where the request names this machine by number or as localhost, so that a page whose
                     name is made to point here cannot ask
    log_text         whether texts are logged

    Raises `UsageError` for a number that makes no sense.
    """

    parallel: int = 1
    queue: int = 64
    max_text: int = 20_000
    max_body: int = 16 * MIB
    max_clip_bytes: int = 10 * MIB
    max_clip_seconds: float = MAX_SECONDS
    ahead_seconds: float = 30.0
    write_timeout: float = 30.0
    read_timeout: float = 30.0
    idle_timeout: float = 60.0
    max_chars: int = MAX_CHARS
    gap: float = GAP
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    local_names: bool = False
    log_text: bool = False

    def __post_init__(self):
        for name, least in (("parallel", 1), ("queue", 0), ("max_text", 1), ("max_body", 1024), ("max_clip_bytes", 1),
                            ("max_clip_seconds", 1), ("write_timeout", 0.1), ("read_timeout", 0.1),
                            ("idle_timeout", 0.1)):
            if not getattr(self, name) >= least:
                raise UsageError(f"{name}: {getattr(self, name)} is too small, the least is {least}")
        if self.max_clip_seconds > MAX_SECONDS:
            raise UsageError(f"max_clip_seconds: {self.max_clip_seconds} is too large, the most is {MAX_SECONDS}")
        for origin in self.cors_origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise UsageError(f"cors_origins: {origin!r} is no origin; write it as https://example.com, or *")
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable() and key == key.strip()):
            raise UsageError("api_key (--api-key, TTS_API_KEY): use printable ASCII characters, at least one, and no "
                             "spaces around them")
