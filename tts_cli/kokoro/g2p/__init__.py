"""Text to the phonemes Kokoro-82M reads: misaki's dialect of the IPA, one character for each symbol.

`english` and `for_language` give an object with one method; what stands behind it can be replaced. A token is a
written word with its whole reading, "$12.50" with "twelve dollars and fifty cents", so times can be given to words.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Protocol

from tts_cli.english.symbols import PUNCTUATION, SYMBOLS, speakable
from tts_cli.errors import UsageError

__all__ = ["G2P", "PUNCTUATION", "SYMBOLS", "Token", "english", "for_language", "phoneme_string", "speakable"]

# Read when onnxruntime is imported, which else keeps a device number and sends what it is used for to its maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@dataclass(frozen=True)
class Token:
    """A word or a mark as written, what the model reads for it, and whether white space follows."""

    text: str
    phonemes: str
    whitespace_after: bool


class G2P(Protocol):
    def phonemes(self, text: str) -> list[Token]:
        """The tokens of `text`, none without phonemes. Their texts and spaces joined give the text with its runs of
        white space as single spaces; all phonemes are in `SYMBOLS`. Text with no word in it gives an empty list."""


def phoneme_string(tokens: list[Token]) -> str:
    """What the model reads for `tokens`."""
    return "".join(token.phonemes + " " * token.whitespace_after for token in tokens).strip()


@lru_cache(maxsize=2)
def english(british: bool = False) -> G2P:
    """American or British English, from the dictionaries and rules of `hibari-tts`: about a second and 130 MB.

    Raises `UsageError` with the install command when a package is missing.
    """
    try:
        import_module("hibari.g2p")
        import_module("onnxruntime")
    except ImportError as error:
        raise UsageError(f"English needs the package {error.name or 'hibari-tts'}: pip install '.[builtin]'") from None
    return import_module("tts_cli.kokoro.g2p.lexicon").English(british)


_ESPEAK = "misaki espeakng-loader phonemizer-fork"
_LANGUAGES = {  # name, misaki module, class, its arguments, packages
    "e": ("Spanish", "espeak", "EspeakG2P", {"language": "es"}, _ESPEAK),
    "f": ("French", "espeak", "EspeakG2P", {"language": "fr-fr"}, _ESPEAK),
    "h": ("Hindi", "espeak", "EspeakG2P", {"language": "hi"}, _ESPEAK),
    "i": ("Italian", "espeak", "EspeakG2P", {"language": "it"}, _ESPEAK),
    "j": ("Japanese", "ja", "JAG2P", {}, "'misaki[ja]'"),
    "p": ("Brazilian Portuguese", "espeak", "EspeakG2P", {"language": "pt-br"}, _ESPEAK),
    "z": ("Chinese", "zh", "ZHG2P", {}, "'misaki[zh]'"),
}


class _Misaki:
    """A G2P of the misaki package: one token for the whole text."""

    def __init__(self, convert):
        self.convert = convert

    def phonemes(self, text: str) -> list[Token]:
        text = " ".join(text.split())
        phonemes = " ".join(speakable(self.convert(text)[0]).split())
        return [Token(text, phonemes, False)] if any(c.isalpha() for c in phonemes) else []


@lru_cache(maxsize=9)
def for_language(code: str) -> G2P:
    """The G2P for the first letter of a voice's name: a American, b British, e es, f fr, h hi, i it, j ja, p pt, z zh.

    Raises `UsageError` for another letter, and with the install command when the language's packages are missing.
    """
    if code in ("a", "b"):
        return english(code == "b")
    if code not in _LANGUAGES:
        raise UsageError(f"language {code!r} is unknown; the model speaks a, b (English), {', '.join(_LANGUAGES)}")
    name, module, kind, arguments, packages = _LANGUAGES[code]
    try:
        return _Misaki(getattr(import_module(f"misaki.{module}"), kind)(**arguments))
    except ImportError as error:
        raise UsageError(f"{name} needs the package {error.name or 'misaki'}: pip install {packages}") from None
