"""What may be typed in the interactive mode: lines to commands, values to settings, completions. Pure functions."""

from dataclasses import dataclass, replace

from tts_cli.engine import TEXT_MODES, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.utterances import MAX_PAUSE, MIN_MAX_CHARS


@dataclass(frozen=True)
class Command:
    """`/name argument`, the argument as it was typed."""

    name: str
    argument: str = ""


@dataclass(frozen=True)
class Rule:
    """`argument`: its name in the help, "" when the command takes none, "[X]" when it may be left out.
    `at_once`: done while another line is being spoken; the others wait their turn."""

    argument: str
    help: str
    at_once: bool = False


COMMANDS = {
    "voice": Rule("NAME|MIX|FILE|none", "speak with a voice by name, or clone the voice of a recording"),
    "lang": Rule("X", "language by name or code, or auto"),
    "seed": Rule("N|random", "same seed, same take"),
    "temp": Rule("X|default", "temperature, 0 is greedy"),
    "set": Rule("[KEY VALUE]", "change a setting (default takes it back); alone: show them all"),
    "save": Rule("FILE", "write the last utterance to an audio file"),
    "again": Rule("", "play the last utterance again"),
    "stop": Rule("", "stop speaking and forget the lines that wait", at_once=True),
    "stats": Rule("", "how the last utterance went, and the session", at_once=True),
    "info": Rule("", "model, device and settings", at_once=True),
    "voices": Rule("", "the voices /voice knows by name", at_once=True),
    "help": Rule("", "this list", at_once=True),
    "quit": Rule("", "leave; so do Ctrl-D, and Ctrl-C at an empty prompt", at_once=True),
}


def parse(line: str) -> Command | str | None:
    """A command, a text to speak, or None for a line without anything.

    A command is one line that starts with "/"; behind a space "/" is text, and so is a paste of several lines.
    Raises `UsageError` for an unknown command (with the list), a missing argument and one too many.
    """
    if not line.strip():
        return None
    if not line.startswith("/") or "\n" in line.strip():
        return line
    name, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    rule = COMMANDS.get(name)
    if rule is None:
        raise UsageError(f"/{name} is not a command; there are {' '.join('/' + known for known in COMMANDS)} "
                         "(a text that starts with / needs a space in front)")
    if argument and not rule.argument:
        raise UsageError(f"/{name} takes nothing behind it, got {argument!r}")
    if not argument and rule.argument and not rule.argument.startswith("["):
        raise UsageError(f"/{name} needs {rule.argument}: {rule.help}")
    return Command(name, argument)


def help_lines() -> list[str]:
    """The list that /help prints."""
    heads = [f"/{name} {rule.argument}".rstrip() for name, rule in COMMANDS.items()]
    width = max(map(len, heads))
    lines = [f"{head:<{width}}  {rule.help}" for head, rule in zip(heads, COMMANDS.values(), strict=True)]
    return [*lines, f"settings of /set: {', '.join(SETTINGS)}"]


@dataclass(frozen=True)
class Settings:
    """How the next text is spoken: a request without its text, and how long text is divided (None: the defaults)."""

    request: SpeechRequest
    max_chars: int | None = None
    gap: float | None = None


def _number_list(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in value.split(","))


def _switch(value: str) -> bool:
    return {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}[value.lower()]


# Name to type -> (field, what reads a value, how a good value looks).
SETTINGS = {
    "lang": ("language", str, "a language"), "text-mode": ("text_mode", str, " or ".join(TEXT_MODES)),
    "temp": ("temperature", float, "a number"), "top-k": ("top_k", int, "a whole number"),
    "top-p": ("top_p", float, "a number"), "repeat-penalty": ("repeat_penalty", float, "a number"),
    "sub-temp": ("sub_temperature", float, "a number"), "sub-top-k": ("sub_top_k", int, "a whole number"),
    "sub-top-p": ("sub_top_p", float, "a number"), "greedy": ("greedy", _switch, "on or off"),
    "seed": ("seed", int, "a whole number or random"), "max-frames": ("max_frames", int, "a whole number"),
    "speed": ("speed", float, "a number"), "from-phonemes": ("phonemes", _switch, "on or off"),
    "chunk-frames": ("chunk_frames", _number_list, "numbers such as 1,2,4,12"),
    "max-chars": ("max_chars", int, "a whole number"), "gap": ("gap", float, "seconds"),
}
# The settings that no request checks, with their limits.
_OURS = {"max_chars": (MIN_MAX_CHARS, None), "gap": (0, MAX_PAUSE)}


def change(settings: Settings, key: str, value: str) -> Settings:
    """Settings with one changed; "default" (or "random" for the seed) takes a change back. Raises `UsageError`."""
    if key not in SETTINGS:
        raise UsageError(f"{key!r} is not a setting; there are {', '.join(SETTINGS)}")
    field, read, looks = SETTINGS[key]
    ours = field in _OURS
    if value.lower() == "default" or (field == "seed" and value.lower() == "random"):
        new = getattr(Settings(SpeechRequest("")) if ours else SpeechRequest(""), field)
    else:
        try:
            new = read(value)
        except (ValueError, KeyError):
            raise UsageError(f"{key}: {value!r} is not {looks}") from None
    if not ours:
        try:
            return replace(settings, request=replace(settings.request, **{field: new}))
        except UsageError as error:
            raise UsageError(f"{key}:{str(error).partition(':')[2]}") from None
    low, high = _OURS[field]
    if new is not None and not (low <= new and (high is None or new <= high)):
        raise UsageError(f"{key}: {value} is out of range, it is {low} {'or more' if high is None else f'to {high:g}'}")
    return replace(settings, **{field: new})


def show(settings: Settings) -> dict[str, str]:
    """Every setting as it would be typed."""
    told = {}
    for key, (field, _, _) in SETTINGS.items():
        value = getattr(settings if field in _OURS else settings.request, field)
        if value is None:
            told[key] = "random" if field == "seed" else "default"
        elif isinstance(value, bool):
            told[key] = "on" if value else "off"
        else:
            told[key] = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return told


def completions(text: str, *, languages=(), voices=()) -> tuple[int, list[str]]:
    """(how many characters before the cursor are replaced, what may stand there) for the text before the cursor.

    Names of files are left to whoever knows the disk: see `wants_file`.
    """
    if not text.startswith("/"):
        return 0, []
    name, space, rest = text[1:].partition(" ")
    if not space:
        return len(text), ["/" + known for known in COMMANDS if known.startswith(name)]
    if name == "set":
        key, space, value = rest.partition(" ")
        if not space:
            return len(rest), [known for known in SETTINGS if known.startswith(key)]
        name, rest = key, value
    switch = ["on", "off"]
    values = {"lang": ["auto", *languages], "voice": ["none", *voices], "seed": ["random"], "temp": ["default"],
              "greedy": switch, "from-phonemes": switch,
              "text-mode": list(TEXT_MODES)}.get(name, ["default"] if name in SETTINGS else [])
    return len(rest), [value for value in values if value.lower().startswith(rest.lower())]


def wants_file(text: str) -> str | None:
    """The beginning of a file name that is being typed, or None where no file belongs."""
    for start in ("/save ", "/voice "):
        if text.startswith(start):
            return text[len(start):]
    return None
