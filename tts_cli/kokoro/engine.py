"""Kokoro behind the `Engine` protocol: text to phonemes to passes to samples, one chunk a pass.

A long text is taken sentence by sentence, so that phonemes are made when their turn comes. Where a pass ends inside
the text, the silence that the model puts around everything is shortened to what a reader would leave.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from tts_cli.device import resolve_device, resolve_dtype
from tts_cli.engine import AudioChunk, CancelToken, Speech, SpeechRequest, Word
from tts_cli.errors import NothingToSpeak, TtsError, UsageError
from tts_cli.kokoro import builtin, packages
from tts_cli.kokoro.config import KokoroConfig
from tts_cli.kokoro.g2p import Token, for_language, phoneme_string
from tts_cli.kokoro.model import Kokoro
from tts_cli.kokoro.passes import Pass, Symbols, passes, symbols
from tts_cli.kokoro.voices import KokoroVoice, Voices, parse_mix
from tts_cli.kokoro.weights import find_weights, load_checkpoint, read_config
from tts_cli.text import clean_text
from tts_cli.utterances import Utterance, utterances

LANGUAGES = {"american": "a", "british": "b", "spanish": "e", "french": "f", "hindi": "h", "italian": "i",
             "japanese": "j", "portuguese": "p", "chinese": "z"}
_CODES = {"english": "", "en": "", "en-us": "a", "en-gb": "b", "es": "e", "fr": "f", "hi": "h", "it": "i", "ja": "j",
          "pt": "p", "pt-br": "p", "zh": "z"}
_PIECE_CHARS = 400  # whole sentences of this many characters are mostly one pass
_SILENT = 0.01
# Seconds of silence left on both sides of a cut by its level (see `Pass`): behind it, then before what follows.
_BEHIND, _BEFORE = (0.25, 0.15, 0.08, 0.02, 0.0), (0.15, 0.08, 0.05, 0.02, 0.0)


@dataclass(frozen=True)
class _Piece:
    """A pass with what is needed to make it: the symbols it is a part of, the words they stand for, silence around."""

    tokens: list[Token]
    symbols: Symbols
    part: Pass
    lead: float = 0.0
    pause: float = 0.0


class KokoroEngine:
    """See `tts_cli.engine.Engine`. Created by `open`."""

    sample_rate = Kokoro.sample_rate
    max_chars = None  # it cuts by phonemes, see `_PIECE_CHARS`
    unused = frozenset(("text_mode", "temperature", "top_k", "top_p", "repeat_penalty", "sub_temperature", "sub_top_k",
                        "sub_top_p", "greedy", "max_frames", "chunk_frames", "codes"))
    languages = ["english", *LANGUAGES]
    default_clip = None  # no voice needs a recording
    together = 1

    def __init__(self, config: KokoroConfig, weights: Path | None, voices: Voices, device: torch.device,
                 dtype: torch.dtype, progress: Callable[[int, int, str], None] | None = None):
        self.config, self.weights, self.voices = config, weights, voices
        self.device, self.dtype = device, dtype
        self.model: Kokoro | None = None
        self._progress = progress

    @classmethod
    def open(cls, folder: Path | None = None, *, device: str = "auto", dtype: str = "auto",
             progress: Callable[[int, int, str], None] | None = None) -> "KokoroEngine":
        """A checkpoint folder, or the built-in model; see `tts_cli.loading.open_engine`."""
        where = resolve_device(device)
        what = resolve_dtype(dtype, where)
        if folder is None:
            config, weights, folders = builtin.builtin_config(), None, [builtin.PACKS]
            packages.check_installed()
        else:
            config, weights, folders = read_config(folder), find_weights(folder), [folder / "voices"]
        shape = (config.max_ids, 2 * config.style)
        own = Voices(folders, shape)
        return cls(config, weights, own if own.names else Voices([builtin.PACKS], shape), where, what, progress)

    @property
    def paths(self) -> list[Path]:
        if self.weights is None:
            return [packages.cache_file()]
        return [self.weights, self.weights.with_name("config.json")]

    @property
    def first_run(self) -> str | None:
        unpacked = self.weights is not None or packages.cache_file().is_file()
        return None if unpacked else "unpacking the built-in voice"

    @property
    def voice_names(self) -> list[str]:
        return self.voices.names

    @property
    def default_voice(self) -> str | None:
        return self.voices.default

    def voice_paths(self, spec: str) -> list[Path]:
        """See `Engine.voice_paths`."""
        return [self.voices.path(name) for name, _ in parse_mix(spec)]

    # ---- requests ---------------------------------------------------------------------------------------------------

    def check(self, request: SpeechRequest) -> None:
        """See `Engine.check`. Imports the package that makes phonemes of the language."""
        self._first(request)

    def phonemes(self, text: str, voice: KokoroVoice | str | None = None, language: str = "auto") -> str:
        """What the model reads for `text`. Raises `UsageError`."""
        request = SpeechRequest(text, language=language, voice=voice)
        letter = self._letter(request, self._voice(request))
        found = (self._tokens(piece.text, letter) for piece in utterances(clean_text(text), max_chars=_PIECE_CHARS))
        return " ".join(filter(None, map(phoneme_string, found)))

    def parts(self, pieces: Iterable[Utterance]) -> Iterator[Utterance]:
        """See `Engine.parts`."""
        return iter(pieces)

    def unread(self, request: SpeechRequest) -> list[str]:
        """See `Engine.unread`: words in scripts that English has no reading for."""
        from tts_cli.english.spoken import unread

        english = not request.phonemes and self._letter(request, self._voice(request)) in "ab"
        return unread(request.text) if english else []

    def unknown_symbols(self, phonemes: str) -> list[str]:
        """The characters of phonemes that the model has no symbol for, each once."""
        return sorted({c for c in phonemes if c not in self.config.vocab and not c.isspace()})

    def _first(self, request: SpeechRequest) -> tuple[KokoroVoice, Iterator[_Piece]]:
        """The voice, and the pieces of the text, at least one. Raises `UsageError`."""
        if request.instruct:
            raise UsageError("instruct: Kokoro takes no instructions; a CustomVoice or VoiceDesign checkpoint does")
        voice = self._voice(request)
        pieces = self._pieces(request, self._letter(request, voice))
        first = next(pieces, None)
        if first is None:
            raise NothingToSpeak(f"nothing to speak: no phonemes were found in {request.text.strip()[:40]!r}; "
                                 "is it in the language of the voice?")
        return voice, chain([first], pieces)

    def _voice(self, request: SpeechRequest) -> KokoroVoice:
        voice = self.default_voice if request.voice is None else request.voice
        if voice is None:
            raise UsageError("voice: this checkpoint has no voices; give a file: --voice FILE.pt")
        if isinstance(voice, str):
            return self.voices.load(voice)
        if not isinstance(voice, KokoroVoice):
            raise UsageError(f"voice {voice.name!r}: {_NO_CLONES}")
        if voice.rows.shape != (shape := (self.config.max_ids, 2 * self.config.style)):
            raise UsageError(f"voice {voice.name!r}: its pack is {list(voice.rows.shape)}, this model needs "
                             f"{list(shape)}")
        return voice

    def _letter(self, request: SpeechRequest, voice: KokoroVoice) -> str:
        """The language's letter. Raises `UsageError` for one that the model does not speak."""
        name = request.language.lower().replace("_", "-")
        if name == "auto":
            return voice.language
        letter = LANGUAGES.get(name, _CODES.get(name))
        if letter is None:
            raise UsageError(f"language: {request.language!r} is not one of auto, {', '.join(self.languages)}")
        return letter or (voice.language if voice.language in "ab" else "a")

    def _tokens(self, text: str, letter: str) -> list[Token]:
        return for_language(letter).phonemes(text)

    def _pieces(self, request: SpeechRequest, letter: str) -> Iterator[_Piece]:
        early = request.early
        for utterance in utterances(clean_text(request.text), max_chars=_PIECE_CHARS, gap=0, paragraph_gap=0):
            text = utterance.text
            tokens = [Token(text, text, False)] if request.phonemes else self._tokens(text, letter)
            found = symbols(tokens, self.config.vocab)
            parts = passes(found.text, self.config.max_ids, early=early)
            for part in parts:
                yield _Piece(tokens, found, part, utterance.lead if part is parts[0] else 0.0,
                             utterance.pause if part is parts[-1] else 0.0)
                early = False

    # ---- work -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """See `Engine.load`."""
        if self.model is not None:
            return
        if self.weights is None:
            model = builtin.load_builtin(self._progress)
        else:
            model = load_checkpoint(self.weights, self.config)
        model.convolve_in(self.dtype)
        self.model = model.to(self.device)

    def speak(self, request: SpeechRequest, cancel: CancelToken | None = None) -> Speech:
        """See `Engine.speak`. Raises `UsageError` at once for what `check` would refuse."""
        seed = secrets.randbits(32) if request.seed is None else request.seed
        voice, pieces = self._first(request)
        return Speech(self._chunks(pieces, voice, request.speed, seed, cancel or CancelToken()), self.sample_rate, seed)

    def _chunks(self, pieces: Iterator[_Piece], voice: KokoroVoice, speed: float, seed: int,
                cancel: CancelToken) -> Iterator[AudioChunk]:
        self.load()
        noise = torch.Generator().manual_seed(seed)
        rows = torch.from_numpy(voice.rows).to(self.device)
        before: _Piece | None = None
        piece = next(pieces, None)
        while piece is not None:
            if cancel.cancelled:
                yield AudioChunk(np.zeros(0, np.float32), self.sample_rate, None, "cancelled")
                return
            samples, durations = self._run(piece, rows, speed, noise)
            following = next(pieces, None)
            yield self._chunk(samples, durations, before, piece, following)
            before, piece = piece, following

    def _run(self, piece: _Piece, rows: torch.Tensor, speed: float,
             noise: torch.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Samples [600 T] and frames per symbol, pads included. Raises `TtsError` for samples that are no numbers."""
        text = piece.symbols.text[piece.part.start:piece.part.end]
        ids = torch.tensor([self.config.vocab[symbol] for symbol in text], device=self.device)
        with torch.inference_mode():
            samples, durations = self.model(ids, rows[min(len(text), len(rows)) - 1], speed, noise)
            samples = samples.float().cpu().numpy()
        if not np.isfinite(samples).all():
            raise TtsError("the model produced samples that are not numbers; try --dtype float32, and check its files")
        return samples.clip(-1, 1), durations.cpu().numpy()

    def _chunk(self, samples: np.ndarray, durations: np.ndarray, before: _Piece | None, piece: _Piece,
               following: _Piece | None) -> AudioChunk:
        """With the silence at cuts shortened, that of pauses added, and the words timed."""
        loud = np.flatnonzero(np.abs(samples) > _SILENT)
        begin, end = 0, len(samples)
        if loud.size:  # what lies outside is silence
            if before is not None:
                begin = max(0, int(loud[0]) - round(_BEFORE[before.part.level] * self.sample_rate))
            if following is not None:
                end = min(end, int(loud[-1]) + 1 + round(_BEHIND[piece.part.level] * self.sample_rate))
        lead, pause = (round(seconds * self.sample_rate) for seconds in (piece.lead, piece.pause))
        words = self._words(piece, durations, begin - lead, lead + end - begin)
        samples = np.concatenate((np.zeros(lead, np.float32), samples[begin:end], np.zeros(pause, np.float32)))
        return AudioChunk(samples, self.sample_rate, None, "eos" if following is None else None, words)

    def _words(self, piece: _Piece, durations: np.ndarray, offset: int, most: int) -> tuple[Word, ...]:
        """The words that begin in this pass; a sample of the model lies `offset` samples earlier in the chunk."""
        ends = np.cumsum(durations)[:-1] * self.config.samples_per_frame  # of the pad, then of each symbol
        owner = piece.symbols.owner
        words: list[Word] = []
        prefix = ""
        for index in dict.fromkeys(owner[piece.part.start:piece.part.end]):
            if index < 0 or (piece.part.start and index in owner[max(0, piece.part.start - 2):piece.part.start]):
                continue
            token = piece.tokens[index]
            if not any(c.isalnum() for c in token.text):
                tight = index == 0 or not piece.tokens[index - 1].whitespace_after
                if tight and words:
                    words[-1] = Word(words[-1].start, words[-1].end, words[-1].text + token.text)
                else:
                    prefix += token.text + " " * token.whitespace_after
                continue
            own = [i for i in range(piece.part.start, piece.part.end) if owner[i] == index]
            start, end = (min(max(int(ends[i]) - offset, 0), most) / self.sample_rate
                          for i in (own[0] - piece.part.start, own[-1] + 1 - piece.part.start))
            words.append(Word(start, end, prefix + token.text))
            prefix = ""
        if prefix and words:
            words[-1] = Word(words[-1].start, words[-1].end, f"{words[-1].text} {prefix.strip()}")
        return tuple(words)

    # ---- voices and facts -------------------------------------------------------------------------------------------

    def check_cloning(self, transcript: bool) -> None:
        """See `Engine.check_cloning`."""
        raise UsageError(_NO_CLONES)

    def voice_from_clip(self, clip: np.ndarray, name: str, ref_text: str | None = None) -> KokoroVoice:
        """See `Engine.voice_from_clip`."""
        raise UsageError(_NO_CLONES)

    def voice_from_file(self, path: Path) -> KokoroVoice:
        """See `Engine.voice_from_file`."""
        return self.voices.load_file(path)

    def describe(self) -> list[str]:
        """See `Engine.describe`."""
        where = f"the built-in Kokoro-82M ({packages.cache_file()})" if self.weights is None else str(self.weights)
        return [f"model: {where}",
                f"device: {self.device}, convolutions in {str(self.dtype).removeprefix('torch.')}, "
                f"{torch.get_num_threads()} CPU threads",
                f"voices: {', '.join(self.voice_names) or 'none'}",
                "language: the one of the voice unless --lang says otherwise"]


_NO_CLONES = "Kokoro cannot clone a recording; use a Qwen3-TTS Base checkpoint (-m TALKER.gguf or -hf), or --voice NAME"
