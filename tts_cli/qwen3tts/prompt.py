"""The prompt as data: two aligned streams, text and codec, whose embeddings are added row by row.

The text side of a row is always a text token. The codec side is nothing, a codec token, or a vector (the speaker).
`overlay` is the text that is still to come: one token per generated frame, then `pad` for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tts_cli.errors import UsageError
from tts_cli.gguf.tokenizer import Tokenizer

LANGUAGE_CODES = {"zh": "chinese", "en": "english", "de": "german", "it": "italian", "pt": "portuguese",
                  "es": "spanish", "ja": "japanese", "ko": "korean", "fr": "french", "ru": "russian"}
_LANGUAGE_PREFIX = "<|codec_language_"


@dataclass(frozen=True)
class SpecialTokens:
    """Ids the prompt is built from: text ids as they stand, codec ids counted from the first codec row."""

    role: tuple[int, ...]           # <|im_start|>assistant\n
    text_pad: int
    text_bos: int
    text_eos: int
    codec_pad: int
    codec_bos: int
    codec_eos: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int
    languages: dict[str, int]       # name -> codec id, dialects included

    @classmethod
    def find(cls, tokenizer: Tokenizer, text_vocab: int) -> "SpecialTokens":
        """Look all of them up by name. Raises `ModelFileError` naming a token the vocabulary lacks."""
        def codec(name: str) -> int:
            return tokenizer.id(f"<|codec_{name}|>") - text_vocab

        languages = {token[len(_LANGUAGE_PREFIX):-2]: i - text_vocab
                     for i, token in enumerate(tokenizer.tokens)
                     if i >= text_vocab and token.startswith(_LANGUAGE_PREFIX)}
        return cls(
            role=(tokenizer.id("<|im_start|>"), *tokenizer.encode("assistant\n")),
            text_pad=tokenizer.id("<tts_pad>"), text_bos=tokenizer.id("<tts_text_bos>"),
            text_eos=tokenizer.id("<tts_text_eod>"), codec_pad=codec("pad"), codec_bos=codec("bos"),
            codec_eos=codec("eos_token"), think=codec("think"), nothink=codec("nothink"),
            think_bos=codec("think_bos"), think_eos=codec("think_eos"), languages=languages)

    @property
    def public_languages(self) -> list[str]:
        return sorted(name for name in self.languages if "dialect" not in name)

    def language_tags(self, language: str) -> tuple[int, ...]:
        """Codec tokens for a language name or two-letter code in any case, or "auto". Raises `UsageError`."""
        name = language.strip().lower()
        if name == "auto":
            return self.nothink, self.think_bos, self.think_eos
        name = LANGUAGE_CODES.get(name, name)
        if name not in self.languages:
            codes = {full: code for code, full in LANGUAGE_CODES.items()}
            known = ", ".join(f"{n} ({codes[n]})" if n in codes else n for n in self.public_languages)
            raise UsageError(f"language: {language!r} is not known to this model; it speaks auto, {known}")
        return self.think, self.think_bos, self.languages[name], self.think_eos


@dataclass(frozen=True)
class Prompt:
    text: tuple[int, ...]
    codec: tuple[int | np.ndarray | None, ...]
    overlay: tuple[int, ...]
    pad: int

    def __post_init__(self):
        assert len(self.text) == len(self.codec)

    def __len__(self) -> int:
        return len(self.text)

    def table(self, tokenizer: Tokenizer, text_vocab: int) -> list[tuple[str, str]]:
        """One (text, codec) pair of names per row."""
        def name(item) -> str:
            if item is None:
                return ""
            return f"vector[{len(item)}]" if isinstance(item, np.ndarray) else tokenizer.token(text_vocab + item)

        return [(tokenizer.token(t), name(c)) for t, c in zip(self.text, self.codec, strict=True)]


def build_prompt(special: SpecialTokens, body: Sequence[int], *, language: str, text_mode: str,
                 speaker: int | np.ndarray | None = None) -> Prompt:
    """Join the user's text ids with the template.

    body       ids of the text alone, at least one
    text_mode  "full": all text in the prompt, the overlay is pad. "streaming": the first token in the prompt and the
               rest as overlay. Never both: a text that is in both places is spoken twice.
    speaker    an x-vector float32 [H], a codec id (named speaker) or None
    Raises `UsageError` for an unknown language.
    """
    s = special
    rows: list[tuple[int, int | np.ndarray | None]] = [(token, None) for token in s.role]
    rows += [(s.text_pad, tag) for tag in s.language_tags(language)]
    if speaker is not None:
        rows.append((s.text_pad, speaker))
    rows.append((s.text_bos, s.codec_pad))
    overlay: tuple[int, ...] = ()
    if text_mode == "full":
        rows += [(token, s.codec_pad) for token in body]
        rows += [(s.text_eos, s.codec_pad), (s.text_pad, s.codec_bos)]
    else:
        rows.append((body[0], s.codec_bos))
        overlay = (*body[1:], s.text_eos)
    text, codec = zip(*rows, strict=True)
    return Prompt(text, codec, overlay, s.text_pad)
