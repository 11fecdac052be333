"""A row of the manifest, made ready to speak: its id, its text, its options over those of the command line, its key.

The key is a digest of what decides the sound, and of nothing else: the utterances and the silence between them, the
options that the model heeds, the content of the voice, the model. A row whose key was finished before is not spoken
again. A row without a seed takes one from the same but for silence and format: the same take wherever and whenever it
is spoken, and whatever file it goes to.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tts_cli.audio.encode import FORMATS
from tts_cli.batch.content import input_digest
from tts_cli.batch.manifest import Entry
from tts_cli.engine import Engine, SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.flags import FLAGS, flags_named
from tts_cli.manner import Manner, name_or_file
from tts_cli.text import MAX_TEXT_BYTES, clean_text
from tts_cli.utterances import estimate_seconds

KEY_VERSION = 3
# Fields of a request by the columns that set them: the names of the options.
_REQUEST = {flag.removeprefix("--").replace("-", "_"): field for field, flag in FLAGS.items()
            if field not in ("voice", "max_chars", "gap", "chunk_frames")}
_NUMBERS = dict.fromkeys(("speed", "temp", "top_p", "repeat_penalty", "sub_temp", "sub_top_p", "gap"), float) | (
    dict.fromkeys(("top_k", "sub_top_k", "seed", "max_frames", "max_chars"), int))
_SWITCHES = dict.fromkeys(("from_phonemes", "greedy", "trim_ref", "no_voice"), bool)
COLUMNS: dict[str, type] = dict.fromkeys(
    ("voice", "speaker_file", "ref_text", "lang", "instruct", "text_mode", "format"), str) | _NUMBERS | _SWITCHES
_OTHER_NAMES = {"speaker": "voice", "language": "lang", "tts_lang": "lang", "tts_speaker_file": "speaker_file"}
_WHOSE_VOICE = ("voice", "speaker_file", "no_voice")
OF_A_CLIP = ("ref_text", "trim_ref")
VOICE_COLUMNS = (*_WHOSE_VOICE, *OF_A_CLIP)
_DIVIDES = ("max_chars", "gap")  # count in the key by the utterances they make
_SAMPLED = ("temp", "top_k", "top_p", "sub_temp", "sub_top_k", "sub_top_p")  # what greedy leaves without a meaning
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f\ud800-\udfff/\\:*?"<>|]')
_RESERVED = re.compile(r"(?i:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?")  # on Windows
_ID_BYTES = 200  # of the 255 a file name may have
_NEARLY = 0.8  # difflib's ratio: one letter of four or five is another


@dataclass(frozen=True)
class Row:
    """What an executor is given: small, and complete but for the model.

    options    by column names, paths absolute; only what is not the default
    extra      columns that are no options, as they were given
    seed       of attempt 0; the next one takes the next seed
    attempts   made before, which need not be made again
    paragraph  see `Entry`
    """

    line: int
    id: str
    text: str
    options: dict
    extra: dict
    key: str
    seed: int
    attempts: int = 0
    paragraph: int | None = None

    @property
    def format(self) -> str:
        return self.options.get("format", "wav")

    @property
    def file(self) -> str:
        """Name of the audio file."""
        return self.id + FORMATS[self.format].extensions[0]

    @property
    def seconds(self) -> float:
        """How long it takes to speak, roughly."""
        return estimate_seconds(self.text)

    @property
    def inputs(self) -> list[Path]:
        """The files it needs."""
        return [Path(value).resolve() for name, value in self.options.items() if _is_path(name, value)]

    def manner(self) -> Manner:
        """How to speak it. Raises `UsageError`."""
        return manner_of(self.options | {"seed": self.seed})


def manner_of(options: Mapping) -> Manner:
    """Options by their column names as the command line's own object. Raises `UsageError`."""
    voice, voice_file = name_or_file(options.get("voice"))
    with flags_named():
        request = SpeechRequest(
            text="", voice=voice, **{_REQUEST[name]: value for name, value in options.items() if name in _REQUEST})
    return Manner(request, options.get("speaker_file"), options.get("max_chars"), options.get("gap"), voice_file,
                  options.get("ref_text"), options.get("trim_ref", False), options.get("no_voice", False))


def stated(options: Mapping) -> dict:
    """Without those that say nothing; 0 does."""
    return {name: value for name, value in options.items() if value is not None and value is not False and value != ""}


def check_format(options: Mapping) -> None:
    """Raises `UsageError` for one that no file has."""
    if (format := options.get("format", "wav")) not in FORMATS:
        raise UsageError(f"format: {format!r} is unknown, choose one of {', '.join(FORMATS)}")


class Rows:
    """Makes rows of entries.

    defaults  options for every row, by column names, as the command line gave them
    folder    what the paths of the manifest are relative to
    model     what `model_identity` says
    engine    it says which options it does not heed, and what the voices are made of
    """

    def __init__(self, defaults: Mapping, folder: Path, model: list, engine: Engine):
        self._defaults = stated(defaults)
        self._folder, self._model, self._engine = folder, model, engine
        self._unheeded = {name for name, field in _REQUEST.items() if field in engine.unused}
        self._digest = lru_cache(1024)(input_digest)
        self._named_voice = lru_cache(1024)(lambda spec: [spec, *map(input_digest, engine.voice_paths(spec))])

    def row(self, entry: Entry) -> Row:
        """Raises `UsageError` saying all that is wrong with the entry's columns, or with what they say together."""
        fields, wrong = _named(entry.fields), []

        def checked(check: Callable, *arguments):
            try:
                return check(*arguments)
            except UsageError as error:
                wrong.append(str(error))

        identity = checked(_checked_id, fields.pop("id", None))
        text = checked(_checked_text, fields.pop("text", None))
        own = {name: checked(_parsed, name, fields.pop(name), kind) for name, kind in COLUMNS.items() if name in fields}
        checked(check_format, stated({**self._defaults, **own}))
        if wrong:
            raise UsageError("; ".join(wrong))
        options = self._over_defaults(own)
        key, seed = self._key_and_seed(text, options)
        return Row(entry.line, identity, text, options, fields, key, options.pop("seed", seed),
                   paragraph=entry.paragraph)

    def _over_defaults(self, own: dict) -> dict:
        """The row's options, and of the command line's those that they do not contradict."""
        whose = [name for name in stated(own) if name in _WHOSE_VOICE]
        if len(whose) > 1:
            raise UsageError(f"{' and '.join(whose)} exclude each other; give one of them")
        if own.get("greedy") and any(own.get(name) is not None for name in ("temp", "sub_temp")):
            raise UsageError("greedy and temp exclude each other; give one of them")
        options = dict(self._defaults)
        if whose:
            for name in VOICE_COLUMNS:
                options.pop(name, None)
        if "temp" in own or "sub_temp" in own:
            options.pop("greedy", None)
        options |= {name: self._found(name, value) for name, value in own.items()}
        if "ref_text" in own:
            options["ref_text"] = clean_text(own["ref_text"])
        neutral = {"lang": "auto", "speed": 1.0, "format": "wav"}
        return {name: value for name, value in stated(options).items() if neutral.get(name) != value}

    def _found(self, name: str, value):
        """Paths of the manifest seen from its folder."""
        return str(self._folder / Path(value).expanduser()) if _is_path(name, value) else value

    def _key_and_seed(self, text: str, options: dict) -> tuple[str, int]:
        pieces = list(manner_of(options).pieces(text))
        left_out = {*_WHOSE_VOICE, *_DIVIDES, *self._unheeded, *(_SAMPLED if options.get("greedy") else ()), "format"}
        heeded = {name: value for name, value in options.items() if name not in left_out}
        manner = [KEY_VERSION, self._model, heeded, self._voice_of(options)]
        written = [[piece.lead, piece.text, piece.pause] for piece in pieces], options.get("format")
        return _digest([manner, written]), int(_digest([manner, " ".join(piece.text for piece in pieces)])[:8], 16)

    def _voice_of(self, options: dict) -> list:
        """What the voice is made of: a clip's content, or a name, which may tell the language, and the content of the
        files behind it.

        The voice that speaks where none is given is as good as the same one given.
        """
        if "speaker_file" in options:
            return [self._digest(options["speaker_file"])]
        if (spec := options.get("voice", self._engine.default_voice)) is not None:
            file = name_or_file(spec)[1]
            return self._named_voice(spec) if file is None else [file.stem, self._digest(file)]
        clip = None if options.get("no_voice") else self._engine.default_clip
        return [] if clip is None else [self._digest(clip)]


def _digest(content) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _checked_text(text) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UsageError("text: none given")
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise UsageError(f"text: longer than {MAX_TEXT_BYTES >> 20} MiB; divide it into rows")
    return clean_text(text)


def _is_path(name: str, value) -> bool:
    return name == "speaker_file" or (name == "voice" and name_or_file(value)[1] is not None)


def identity_of(entry: Entry) -> str | None:
    """The id, whatever else is wrong with the row; None for one that `Rows.row` refuses."""
    given = [value for column, value in entry.fields.items() if _plain(column) == "id" and value not in (None, "")]
    try:
        return _checked_id(given[0] if given else None)
    except UsageError:
        return None


def meant(column: str) -> str | None:
    """The option whose name, or whose name elsewhere, is nearly that of a column which is none."""
    known = dict.fromkeys(COLUMNS) | _OTHER_NAMES | {field: name for name, field in _REQUEST.items()}
    found = difflib.get_close_matches(_plain(column), known, 1, _NEARLY)
    return (known[found[0]] or found[0]) if found else None


def _plain(column: str) -> str:
    return column.strip().lower().replace("-", "_")


def _named(fields: Mapping) -> dict:
    """Columns by the names of the options, with underscores; empty cells left out."""
    named = {}
    for given, value in fields.items():
        if value is None or value == "":
            continue
        name = _OTHER_NAMES.get(_plain(given), _plain(given))
        name = name if name in COLUMNS or name in ("id", "text") else given
        if name in named:
            raise UsageError(f"{name}: given in two columns")
        named[name] = value
    return named


def _checked_id(given) -> str:
    """A name that every file system takes. Raises `UsageError`."""
    if given is None or isinstance(given, bool) or not isinstance(given, (str, int)) or not str(given).strip():
        raise UsageError("id: none given; it names the row's file")
    name = str(given).strip()
    if (_UNSAFE.search(name) or name.startswith(".") or name.endswith(".") or _RESERVED.fullmatch(name)
            or len(name.encode()) > _ID_BYTES or not name.isprintable()):
        raise UsageError(f"id: {name[:60]!r} cannot name a file everywhere; use letters, digits, spaces and "
                         f". + - _, at most {_ID_BYTES} bytes, without a point in front or at the end")
    return name


def _parsed(name: str, value, kind: type):
    """A cell or a JSON value as the option's kind. Raises `UsageError`."""
    try:
        if isinstance(value, str) and kind is bool:
            if value.strip().lower() not in (*_TRUE, *_FALSE):
                raise ValueError
            return value.strip().lower() in _TRUE
        if isinstance(value, str):
            return kind(value.replace(",", ".") if kind is float else value)  # 0,5 in most of Europe
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(f"{name}: {_shortened(value)} is not {_KINDS[kind]}") from None


def _shortened(value) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]} ..."
