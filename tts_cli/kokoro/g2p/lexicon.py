"""English phonemes from the package `hibari-tts` (Apache-2.0): misaki's dictionaries and rules with a small tagger.

Only its lexicon side is used. Numbers, symbols and quotes never reach it (see `tts_cli.english`): it misreads the words
beside a quote, fails on long digit runs, and takes cubic time on a long run without spaces.
"""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import hibari.g2p as hibari
from hibari.g2p.oov import OOV
from hibari.g2p.token import Tok

from tts_cli.english import parts
from tts_cli.english.spoken import RULES
from tts_cli.english.symbols import PUNCTUATION, speakable
from tts_cli.kokoro.g2p import Token

_QUOTES = '"“”'
_LONGEST_GUESS = 24  # letters its network for unknown words sees at a time
_SHOUTED = 3  # capital words in a row that make a shout, not acronyms


class English:
    """See `tts_cli.kokoro.g2p.G2P`."""

    def __init__(self, british: bool):
        self.british = british
        self._engine = hibari.G2P(oov=self._guess, british=british)
        self._network: OOV | None = None
        self._guess_part = lru_cache(maxsize=4096)(self._read_by_network)

    def phonemes(self, text: str) -> list[Token]:
        folded = parts.fold(text)
        found = parts.parts(folded, RULES, self.british)
        pieces = [*self._read(parts.spoken(folded, found)), *_quotes(folded, found)]
        return _tokens(text, sorted(pieces, key=lambda piece: piece[0]))

    def _read(self, said: parts.Spoken) -> list[tuple[int, int, str]]:
        """Spans of the written text with their phonemes, in order."""
        words = self._lower_shouts(re.sub(f"[{_QUOTES}]", " ", said.text))
        pairs = self._engine.tokenizer(words)
        if not pairs:
            return []
        tokens = [Tok(text, tag, space) for (text, space), tag in
                  zip(pairs, self._engine.tagger([text for text, _ in pairs]), strict=True)]
        spans = _find(tokens, words)
        for token, after, (at, _) in zip(tokens, [*tokens[1:], None], spans, strict=True):
            replaced = said.spans[at][1] - said.spans[at][0] > 1
            if at in said.fixed:
                token.phonemes, token.rating = said.fixed[at], 5
            elif all(c in PUNCTUATION for c in token.text):
                token.phonemes, token.rating = token.text, 4
            elif token.text == "A" and (replaced or not after or not after.text[0].isalnum()):
                token.tag = "NN"  # the letter, not the article
            elif token.text == "point" and replaced:
                token.stress = -2  # the decimal point, unstressed
        merged = self._engine.phonemize_tokens(tokens)
        found = []
        for token, (at, end) in zip(merged, _find(merged, words), strict=True):
            written = said.spans[at:end]
            phonemes = said.fixed.get(at) or speakable(token.phonemes or "")
            found.append((min(start for start, _ in written), max(end for _, end in written), phonemes))
        return found

    def _lower_shouts(self, words: str) -> str:
        """HELLO OUT THERE is read as words: the lexicon would spell what it holds to be a name."""
        def lower(match: re.Match) -> str:
            golds = self._engine.lexicon.golds.d
            return re.sub(r"[A-Z]{2,}", lambda m: m[0].lower() if m[0].lower() in golds else m[0], match[0])
        return re.sub(rf"\b[A-Z]{{2,}}(?:[ —'-]+[A-Z]+\b){{{_SHOUTED - 1},}}", lower, words)

    def _guess(self, word: str) -> str | None:
        """An unknown word, in pieces that the network can see whole."""
        count = -(-len(word) // _LONGEST_GUESS)
        size = -(-len(word) // count)
        return "".join(self._guess_part(word[at:at + size]) for at in range(0, len(word), size)) or None

    def _read_by_network(self, letters: str) -> str:
        if self._network is None:
            assets = Path(hibari.ASSETS)
            self._network = OOV(str(assets / ("oov_gb.onnx" if self.british else "oov.onnx")))
        known = self._network.cin
        plain = "".join(c if c in known else unicodedata.normalize("NFKD", c) for c in letters)
        return self._network(plain) or ""


def _find(tokens: list[Tok], words: str) -> list[tuple[int, int]]:
    """Where the tokens stand in `words`, in whose order they are. They may have lost a mark on the way."""
    found = []
    at = 0
    for token in tokens:
        start = at = words.index(token.text[0], at)
        for c in token.text:
            at = words.index(c, at) + 1
        found.append((start, at))
    return found


def _quotes(text: str, found: list[parts.Part]) -> list[tuple[int, int, str]]:
    """Double quotes as the model reads them: “ before a word, ” after one."""
    marks = []
    for part in found:
        if part.spoken != text[part.start:part.end]:
            continue
        for match in re.finditer(f"[{_QUOTES}]", part.spoken):
            at = part.start + match.start()
            before, after = text[:at][-1:], text[at + 1:at + 2]
            inside = bool(after.strip()) and not (before.isalnum() or before and before in ".,;:!?…)")
            opens = match[0] == "“" or match[0] == '"' and inside
            marks.append((at, at + 1, "“" if opens else "”"))
    return marks


def _tokens(text: str, pieces: list[tuple[int, int, str]]) -> list[Token]:
    """One token for readings of overlapping spans and for neighbours with neither a space nor a mark between; what has
    no reading goes with the token before it, or at the start with the first."""
    merged: list[tuple[int, int, str]] = []
    for start, end, phonemes in pieces:
        if merged:
            first, last, before = merged[-1]
            mark = phonemes[:1] in PUNCTUATION  # and so is ""
            joint = not mark and before[-1:] not in PUNCTUATION and not re.search(r"\s", text[last:start])
            if start < last or joint or not phonemes or not before:
                merged[-1] = (first, max(last, end), f"{before}{'' if mark or not before else ' '}{phonemes}")
                continue
        merged.append((start, end, phonemes))
    if not any(c.isalpha() for _, _, phonemes in merged for c in phonemes):
        return []
    bounds = [0]
    for (_, last, _), (start, _, phonemes) in zip(merged[:-1], merged[1:], strict=True):
        space = max(text.rfind(c, last, start) for c in (" ", "\n", "\t"))
        bounds.append(start if space < 0 or phonemes in PUNCTUATION else space + 1)  # 'said "' stays, '`code' moves
    bounds.append(len(text))
    tokens = []
    for (_, _, phonemes), begin, end in zip(merged, bounds[:-1], bounds[1:], strict=True):
        stretch = text[begin:end]
        tokens.append(Token(" ".join(stretch.split()), phonemes, end < len(text) and stretch[-1:].isspace()))
    return tokens
