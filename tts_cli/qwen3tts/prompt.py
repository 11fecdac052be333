"""The prompt as data: two aligned streams, text and codec, whose embeddings are added row by row.

The text side of a row is always a text token. The codec side is nothing, a codec token, a vector (the speaker) or the
16 codes of a reference frame. `overlay` is the text that is still to come: one token per generated frame, then `pad`
for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from tts_cli.errors import UsageError
from tts_cli.gguf.tokenizer import Tokenizer

LANGUAGE_CODES = {"zh": "chinese", "en": "english", "de": "german", "it": "italian", "pt": "portuguese",
                  "es": "spanish", "ja": "japanese", "ko": "korean", "fr": "french", "ru": "russian"}
_LANGUAGE_PREFIX, _SPEAKER_PREFIX = "<|codec_language_", "<|spk_"

Frame = tuple[int, ...]  # the codes of one frame
CodecItem = int | np.ndarray | Frame | None
Row = tuple[int, CodecItem]


@dataclass(frozen=True)
class SpecialTokens:
    """Ids the prompt is built from: text ids as they stand, codec ids counted from the first codec row."""

    im_start: int
    im_end: int
    newline: int
    assistant: int
    user: tuple[int, ...]
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
    speakers: dict[str, int]        # name -> codec id, CustomVoice checkpoints only

    @classmethod
    def find(cls, tokenizer: Tokenizer, text_vocab: int) -> "SpecialTokens":
        """Look all of them up by name. Raises `ModelFileError` naming a token the vocabulary lacks."""
        def codec(name: str) -> int:
            return tokenizer.id(f"<|codec_{name}|>") - text_vocab

        def named(prefix: str) -> dict[str, int]:
            return {token[len(prefix):-2]: i for i, token in enumerate(tokenizer.tokens[text_vocab:])
                    if token.startswith(prefix)}

        return cls(
            im_start=tokenizer.id("<|im_start|>"), im_end=tokenizer.id("<|im_end|>"), newline=tokenizer.id("Ċ"),
            assistant=tokenizer.id("assistant"), user=tuple(tokenizer.encode("user")),
            text_pad=tokenizer.id("<tts_pad>"), text_bos=tokenizer.id("<tts_text_bos>"),
            text_eos=tokenizer.id("<tts_text_eod>"), codec_pad=codec("pad"), codec_bos=codec("bos"),
            codec_eos=codec("eos_token"), think=codec("think"), nothink=codec("nothink"),
            think_bos=codec("think_bos"), think_eos=codec("think_eos"),
            languages=named(_LANGUAGE_PREFIX), speakers=named(_SPEAKER_PREFIX))

    @property
    def public_languages(self) -> list[str]:
        return sorted(name for name in self.languages if "dialect" not in name)

    def language(self, given: str) -> str:
        """The name of a language given by name or two-letter code in any case, or "auto". Raises `UsageError`."""
        name = given.strip().lower()
        name = LANGUAGE_CODES.get(name, name)
        if name != "auto" and name not in self.languages:
            codes = {full: code for code, full in LANGUAGE_CODES.items()}
            known = ", ".join(f"{n} ({codes[n]})" if n in codes else n for n in self.public_languages)
            raise UsageError(f"language: {given!r} is not known to this model; it speaks auto, {known}")
        return name

    def speaker(self, given: str) -> str:
        """The name of a speaker given in any case. Raises `UsageError` with the list."""
        name = given.strip().lower()
        if name not in self.speakers:
            raise UsageError(f"voice: {given!r} is not a speaker of this model; it has "
                             f"{', '.join(sorted(self.speakers)) or 'none'}")
        return name

    def language_tags(self, name: str) -> tuple[int, ...]:
        """Codec tokens for a name that `language` returned."""
        if name == "auto":
            return self.nothink, self.think_bos, self.think_eos
        return self.think, self.think_bos, self.languages[name], self.think_eos


@dataclass(frozen=True)
class Reference:
    """What in-context cloning continues: text ids of the clip's words and its codes int [T, 16]."""

    body: tuple[int, ...]
    codes: np.ndarray


@dataclass(frozen=True)
class Prompt:
    """`fixed`: how many of the first rows do not depend on the text to speak, the last row never counted."""

    text: tuple[int, ...]
    codec: tuple[CodecItem, ...]
    overlay: tuple[int, ...]
    pad: int
    fixed: int

    def __len__(self) -> int:
        return len(self.text)

    def table(self, tokenizer: Tokenizer, text_vocab: int) -> list[tuple[str, str]]:
        """One (text, codec) pair of names per row."""
        def name(item: CodecItem) -> str:
            if item is None:
                return ""
            if isinstance(item, np.ndarray):
                return f"vector[{len(item)}]"
            return f"frame {item[0]} …" if isinstance(item, tuple) else tokenizer.token(text_vocab + item)

        return [(tokenizer.token(t), name(c)) for t, c in zip(self.text, self.codec, strict=True)]


def build_prompt(special: SpecialTokens, body: Sequence[int], *, language: str, text_mode: str,
                 speaker: int | np.ndarray | None = None, instruct: Sequence[int] = (),
                 reference: Reference | None = None) -> Prompt:
    """Join the user's text ids with the template.

    body       ids of the text alone, at least one
    language   a name that `SpecialTokens.language` returned
    text_mode  "full": all text in the prompt, the overlay is pad. "streaming": text in step with the codec side and
               the rest as overlay. Never both: a text that is in both places is spoken twice.
    speaker    an x-vector float32 [H], a codec id (named speaker) or None
    instruct   ids of the instruction alone
    reference  the clip to go on from
    """
    s = special
    rows: list[Row] = []
    if instruct:
        rows += [(token, None) for token in (s.im_start, *s.user, s.newline, *instruct, s.im_end, s.newline)]
    rows += [(token, None) for token in (s.im_start, s.assistant, s.newline)]
    rows += [(s.text_pad, tag) for tag in s.language_tags(language)]
    if speaker is not None:
        rows.append((s.text_pad, speaker))
    rows.append((s.text_bos, s.codec_pad))
    overlay: tuple[int, ...] = ()
    text = (*reference.body, *body, s.text_eos) if reference else (*body, s.text_eos)
    codec: list[CodecItem] = [s.codec_bos]
    if reference:
        codec += [tuple(int(code) for code in frame) for frame in reference.codes]
    known = len(reference.body) if reference else 0
    if text_mode == "full":
        fixed = len(rows) + known
        rows += [(token, s.codec_pad) for token in text] + [(s.text_pad, item) for item in codec]
    else:
        fixed = len(rows) + min(known, len(codec))
        rows += zip_longest(text[:len(codec)], codec, fillvalue=s.text_pad)
        overlay = text[len(codec):]
    prompt_text, prompt_codec = zip(*rows, strict=True)
    return Prompt(prompt_text, prompt_codec, overlay, s.text_pad, min(fixed, len(rows) - 1))
