"""Text as it arrives (bytes, arguments) to text that can be spoken.

Nothing here interprets the text: markup such as `<break/>`, `**bold**` or `<|im_end|>` stays what it is, characters.
"""

import re
import unicodedata

from tts_cli.errors import NothingToSpeak, UsageError

MAX_TEXT_BYTES = 16 << 20
# How no text begins, and how bytes begin that are no text but might be told by it.
_DOCUMENTS = {b"%PDF-": "a PDF", b"PK\x03\x04": "a document or archive (docx, odt, epub, zip)", b"{\\rtf": "RTF"}
_BINARY = {b"\xd0\xcf\x11\xe0": "an old Office document", b"RIFF": "audio or video", b"fLaC": "audio",
           b"ID3": "audio", b"OggS": "audio", b"GGUF": "a model"}
# ESC [ … final byte (colours, cursor), ESC ] … BEL or ESC \ (titles, links), then any other two-byte escape.
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_END = re.compile("\r\n|[\r\x85\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DROPPED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")  # controls except \n and \t, and byte order marks


def decode_text(raw: bytes, where: str) -> str:
    """UTF-8 bytes to text, whatever the locale says; a byte order mark is dropped.

    Raises `UsageError` naming `where` and the offset of the first byte that is not UTF-8, or what the bytes are instead
    of text.
    """
    _refuse_other_kinds(raw, _DOCUMENTS, where)
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageError(f"{where}: this looks like UTF-16; save the text as UTF-8")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        _refuse_other_kinds(raw, _BINARY, where)
        raise UsageError(f"{where}: byte {raw[error.start]:#04x} at offset {error.start} is not UTF-8; "
                         "save the text as UTF-8") from None


def _refuse_other_kinds(raw: bytes, kinds: dict[bytes, str], where: str) -> None:
    for start, what in kinds.items():
        if raw.startswith(start):
            raise UsageError(f"{where}: this is {what}; save its text as plain text, and speak that")


def clean_text(text: str) -> str:
    """Trim outer white space, make every line end `\\n`, drop terminal escapes and control characters.

    Raises `UsageError` for half a surrogate pair (text decoded with the wrong encoding) and `NothingToSpeak` when no
    letter or digit is left: symbols alone make a speech model babble.
    """
    if half := _SURROGATE.search(text):
        raise UsageError(f"text: character {half.start()} is half of a surrogate pair; give the text as UTF-8")
    text = _ESCAPE_SEQUENCE.sub("", text)
    text = _LINE_END.sub("\n", text)
    text = _DROPPED.sub("", text)
    text = text.strip()
    if not any(unicodedata.category(c)[0] in "LN" for c in text):
        shown = f" in {text[:20]!r}" if text else ": the text is empty"
        raise NothingToSpeak(f"nothing to speak{shown}; at least one letter or digit is needed")
    return text
