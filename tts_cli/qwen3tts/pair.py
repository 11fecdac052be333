"""The two files of a model, opened and held against each other; headers only."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tts_cli.engine import TEXT_MODES
from tts_cli.errors import ModelFileError, UsageError
from tts_cli.gguf.file import GGUFFile
from tts_cli.gguf.tokenizer import Tokenizer
from tts_cli.qwen3tts import config as cfg
from tts_cli.qwen3tts.prompt import SpecialTokens
from tts_cli.utterances import MIN_MAX_CHARS

# Rows that two files of one checkpoint share agree to quantisation error; unrelated ones have cosine near 0.
SAME_CHECKPOINT = 0.8
KINDS = ("base", "custom_voice", "voice_design")


def find_mmproj(talker: Path) -> Path:
    """The only `mmproj*.gguf` beside the talker. Raises `UsageError` when there is none or more than one."""
    found = sorted(p for p in talker.parent.glob("*.gguf") if p.name.lower().startswith("mmproj"))
    if not found:
        raise UsageError(f"there is no mmproj*.gguf beside {talker}: give it with -mm MMPROJ.gguf")
    if len(found) > 1:
        raise UsageError(f"{len(found)} mmproj files lie beside {talker} ({', '.join(p.name for p in found)}): "
                         "choose one with -mm")
    return found[0]


def open_mmproj(path: str | Path) -> GGUFFile:
    """Raises `UsageError`, or `ModelFileError` when it is another kind of file."""
    file = GGUFFile.open(path)
    cfg.check_architecture(file, cfg.MMPROJ_ARCHITECTURE)
    return file


@dataclass(frozen=True)
class Pair:
    """Talker and mmproj of one checkpoint with everything their headers say."""

    talker: GGUFFile
    mmproj: GGUFFile
    config: cfg.TalkerConfig
    predictor: cfg.CodePredictorConfig
    code2wav: cfg.Code2WavConfig
    speaker_encoder: cfg.SpeakerEncoderConfig | None
    codec_encoder: cfg.CodecEncoderConfig | None
    sampling: cfg.SamplingDefaults
    tokenizer: Tokenizer
    special: SpecialTokens

    @classmethod
    def open(cls, talker: str | Path, mmproj: str | Path | None = None) -> "Pair":
        """Raises `UsageError` or `ModelFileError`."""
        t = GGUFFile.open(talker)
        cfg.check_architecture(t, cfg.TALKER_ARCHITECTURE)
        m = open_mmproj(mmproj or find_mmproj(Path(talker)))
        config, tokenizer = cfg.talker_config(t), Tokenizer.from_gguf(t)
        if len(tokenizer.tokens) != config.vocab:
            raise ModelFileError(f"{t.path}: {len(tokenizer.tokens)} token names for {config.vocab} embedding rows")
        pair = cls(t, m, config, cfg.code_predictor_config(m), cfg.code2wav_config(m), cfg.speaker_encoder_config(m),
                   cfg.codec_encoder_config(m), cfg.sampling_defaults(t), tokenizer,
                   SpecialTokens.find(tokenizer, config.text_vocab))
        pair._check()
        return pair

    @property
    def name(self) -> str:
        return self.talker.get("general.name", str, self.talker.path.stem)

    @property
    def kind(self) -> str:
        """Of `KINDS`: it clones, has named speakers, or follows a description."""
        return self.talker.get("tts_cli.model_type", str, self._kind_by_tokens())

    @property
    def follows_instructions(self) -> bool:
        """The small CustomVoice model was not trained to; the reference drops its instruction."""
        return self.kind == "voice_design" or (
            self.kind == "custom_voice" and self.talker.get("tts_cli.model_size", str, "") != "0b6")

    @property
    def single_voice(self) -> bool:
        """Whether it was trained on one voice, which it speaks in by itself, and cannot clone."""
        return self.talker.get("tts_cli.single_voice", bool, False)

    @property
    def text_mode(self) -> str:
        """The layout this model is used with: what its file says, else that of its kind in the reference
        implementation."""
        return self.talker.get("tts_cli.text_mode", str, "streaming" if self.kind == "base" else "full")

    @property
    def max_chars(self) -> int | None:
        """How long the utterances are at most that it was trained on, in letters; None: as long as any."""
        return self.talker.get("tts_cli.max_chars", int, None)

    @property
    def plain_english(self) -> bool:
        """Whether it was trained on English words alone: `english.plain.plain` is what it reads."""
        return self.talker.get("tts_cli.plain_english", bool, False)

    @property
    def dialects(self) -> dict[str, str]:
        """Speakers that speak a dialect of Chinese, by name."""
        entries = self.talker.get("tts_cli.speaker_dialects", list[str], [])
        return {speaker: dialect for speaker, _, dialect in (entry.partition("=") for entry in entries)
                if dialect in self.special.languages}

    def fingerprint(self) -> np.ndarray:
        """A few codebook-0 embeddings, float32 [8, H]: the same checkpoint in any quantisation has nearly the same."""
        rows = np.linspace(0, self.predictor.codes - 1, 8).astype(int)
        return self.mmproj.rows("a.gen.code.out_embd.weight", rows)

    def _kind_by_tokens(self) -> str:
        """For files without our metadata: only CustomVoice names speakers, only Base lacks the dialects."""
        if self.special.speakers:
            return "custom_voice"
        return "voice_design" if len(self.special.languages) > len(self.special.public_languages) else "base"

    def _check(self) -> None:
        """Raises `ModelFileError` when the files are not of one checkpoint, with both values."""
        c, p, w, s = self.config, self.predictor, self.code2wav, self.speaker_encoder
        hidden, kind = c.transformer.hidden, self._kind_by_tokens()
        pairs = [("talker hidden size", hidden, "mmproj hidden size", p.talker_hidden),
                 ("talker codec rows", c.codec_vocab, "mmproj codec rows", p.codec_vocab),
                 ("predictor codebooks", p.books, "code2wav codebooks", w.books),
                 ("predictor codes", p.codes, "code2wav codes", w.codes)]
        if s:
            pairs.append(("talker hidden size", hidden, "x-vector length", s.output))
        if e := self.codec_encoder:
            pairs += [("predictor codebooks", p.books, "codec encoder codebooks", e.books),
                      ("predictor codes", p.codes, "codec encoder codes", e.codes)]
        if (kind == "base") != (s is not None):
            pairs.append(("talker kind", kind, "mmproj kind", "base" if s else "custom_voice or voice_design"))
        for left, a, right, b in pairs:
            if a != b:
                raise ModelFileError(f"{self.talker.path.name} and {self.mmproj.path.name} do not fit: "
                                     f"{left} {a}, {right} {b}")
        for key, value, known in (("text_mode", self.text_mode, TEXT_MODES), ("model_type", self.kind, KINDS)):
            if value not in known:
                raise ModelFileError(f"{self.talker.path}: tts_cli.{key} is {value!r}, expected {' or '.join(known)}")
        if self.max_chars is not None and self.max_chars < MIN_MAX_CHARS:
            raise ModelFileError(f"{self.talker.path}: tts_cli.max_chars is {self.max_chars}, expected at least "
                                 f"{MIN_MAX_CHARS}")
        x = self.special
        tokens = (x.codec_pad, x.codec_bos, x.codec_eos, x.think, x.nothink, x.think_bos, x.think_eos,
                  *x.languages.values(), *x.speakers.values())
        if p.codes > c.codec_vocab or not all(0 <= t < c.codec_vocab for t in tokens):
            raise ModelFileError(f"{self.talker.path}: special codec tokens lie outside {c.codec_vocab} rows")
        self._check_shared_rows()

    def _check_shared_rows(self) -> None:
        """Both files store the codebook-0 embeddings: a few rows tell whether they come from one checkpoint."""
        rows = np.linspace(0, self.predictor.codes - 1, 16).astype(int)
        cosine = similarity(self.talker.rows("token_embd.weight", rows + self.config.text_vocab),
                            self.mmproj.rows("a.gen.code.out_embd.weight", rows))
        if not cosine >= SAME_CHECKPOINT:
            raise ModelFileError(
                f"{self.talker.path.name} and {self.mmproj.path.name} are not of one checkpoint: their codebook-0 "
                f"embeddings have cosine {cosine:.2f}, expected at least {SAME_CHECKPOINT}")


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of two arrays of one shape, taken as vectors; 0 when the shapes differ, NaN for zeros."""
    if a.shape != b.shape:
        return 0.0
    with np.errstate(all="ignore"):
        return float((a * b).sum() / np.sqrt(np.square(a).sum() * np.square(b).sum()))
