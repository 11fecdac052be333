"""Qwen3-TTS behind the `Engine` protocol: files, tokenizer, prompt and models joined.

Opening reads headers only, so that everything a request can get wrong is refused before any weight is read.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tts_cli.audio.mel import MIN_SAMPLES, SAMPLE_RATE, log_mel
from tts_cli.engine import CHUNK_FRAMES, AudioChunk, CancelToken, Speech, SpeechRequest
from tts_cli.errors import ModelFileError, TtsError, UsageError
from tts_cli.gguf.file import GGUFFile
from tts_cli.gguf.tokenizer import Tokenizer
from tts_cli.qwen3tts import config as cfg
from tts_cli.qwen3tts.code2wav import Code2Wav, Code2WavState
from tts_cli.qwen3tts.generate import LoopOptions, PromptRows, decode_chunk, speech
from tts_cli.qwen3tts.prompt import Prompt, SpecialTokens, build_prompt
from tts_cli.qwen3tts.sampling import SamplingOptions
from tts_cli.qwen3tts.speaker_encoder import SpeakerEncoder
from tts_cli.qwen3tts.weights import Models, load_codec, load_models
from tts_cli.text import clean_text
from tts_cli.voices import Voice

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# The automatic budget: one second, and as much as slow speech or spelled-out digits need per text token.
BUDGET_BASE, BUDGET_PER_TOKEN = 25, 12
# Rows that two files of one checkpoint share agree to quantisation error; unrelated ones have cosine near 0.
PAIR_COSINE = 0.8


def resolve_device(name: str) -> torch.device:
    """auto, cpu, cuda, cuda:N or mps. Only auto falls back. Raises `UsageError` for what this machine lacks."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(kind)
    if count is None or (index and not (kind == "cuda" and index.isascii() and index.isdigit())):
        raise UsageError(f"device: {name!r} is not one of auto, cpu, cuda, cuda:N, mps")
    if int(index or 0) >= count:
        raise UsageError(f"device: {name} is not available here ({count} {kind} devices found); try --device auto")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """auto is bfloat16 where the hardware multiplies it natively, else float32. Raises `UsageError`."""
    if name == "auto":
        native = device.type == "cuda" and torch.cuda.is_bf16_supported() or (
            device.type == "cpu" and torch.cpu._is_avx512_bf16_supported())
        return torch.bfloat16 if native else torch.float32
    if name not in DTYPES:
        raise UsageError(f"dtype: {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def find_mmproj(talker: Path) -> Path:
    """The only `mmproj*.gguf` beside the talker. Raises `UsageError` when there is none or more than one."""
    found = sorted(p for p in talker.parent.glob("*.gguf") if p.name.lower().startswith("mmproj"))
    if not found:
        raise UsageError(f"there is no mmproj*.gguf beside {talker}: give it with -mm MMPROJ.gguf")
    if len(found) > 1:
        raise UsageError(f"{len(found)} mmproj files lie beside {talker} ({', '.join(p.name for p in found)}): "
                         "choose one with -mm")
    return found[0]


@dataclass(frozen=True)
class Files:
    talker: GGUFFile
    mmproj: GGUFFile


@dataclass(frozen=True)
class _Plan:
    """A request made concrete, without weights."""

    prompt: Prompt
    options: LoopOptions


class Qwen3TTSEngine:
    """See `tts_cli.engine.Engine`. Created by `open`."""

    def __init__(self, files: Files, device: torch.device, dtype: torch.dtype):
        self.files, self.device, self.dtype = files, device, dtype
        self.config = cfg.talker_config(files.talker)
        self.predictor_config = cfg.code_predictor_config(files.mmproj)
        self.code2wav_config = cfg.code2wav_config(files.mmproj)
        self.speaker_config = cfg.speaker_encoder_config(files.mmproj)
        self.defaults = cfg.sampling_defaults(files.talker)
        self.tokenizer = Tokenizer.from_gguf(files.talker)
        if len(self.tokenizer.tokens) != self.config.vocab:
            raise ModelFileError(f"{files.talker.path}: {len(self.tokenizer.tokens)} token names for "
                                 f"{self.config.vocab} embedding rows")
        self.special = SpecialTokens.find(self.tokenizer, self.config.text_vocab)
        self.sample_rate = self.code2wav_config.sample_rate
        self.models: Models | None = None
        self._check_pair()

    @classmethod
    def open(cls, model: str | Path, mmproj: str | Path | None = None, *, device: str = "auto",
             dtype: str = "auto") -> "Qwen3TTSEngine":
        """See `tts_cli.engine.open_engine`."""
        where = resolve_device(device)
        what = resolve_dtype(dtype, where)
        talker = GGUFFile.open(model)
        cfg.check_architecture(talker, cfg.TALKER_ARCHITECTURE)
        projector = GGUFFile.open(mmproj or find_mmproj(Path(model)))
        cfg.check_architecture(projector, cfg.MMPROJ_ARCHITECTURE)
        return cls(Files(talker, projector), where, what)

    # ---- what the files are -------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """base (clones), custom_voice (named speakers) or voice_design (instructions)."""
        return self.files.talker.get("tts_cli.model_type", str, self._talker_kind())

    @property
    def languages(self) -> list[str]:
        return self.special.public_languages

    @property
    def text_mode(self) -> str:
        """The layout the checkpoint kind is used with by default, as in the reference."""
        return "streaming" if self.kind == "base" else "full"

    def _talker_kind(self) -> str:
        """For files without our metadata: only CustomVoice names speakers, only Base lacks the dialects."""
        if any(t.startswith("<|spk_") for t in self.tokenizer.tokens[self.config.text_vocab:]):
            return "custom_voice"
        return "voice_design" if len(self.special.languages) > len(self.languages) else "base"

    def _check_pair(self) -> None:
        """Raises `ModelFileError` when talker and mmproj are not of one checkpoint, with both values."""
        c, p, w, s = self.config, self.predictor_config, self.code2wav_config, self.speaker_config
        hidden = c.transformer.hidden
        pairs = [("talker hidden size", hidden, "mmproj hidden size", p.talker_hidden),
                 ("talker codec rows", c.codec_vocab, "mmproj codec rows", p.codec_vocab),
                 ("predictor codebooks", p.books, "code2wav codebooks", w.books),
                 ("predictor codes", p.codes, "code2wav codes", w.codes)]
        if s:
            pairs.append(("talker hidden size", hidden, "x-vector length", s.output))
        kind = self._talker_kind()
        if (kind == "base") != (s is not None):
            pairs.append(("talker kind", kind, "mmproj kind", "base" if s else "custom_voice or voice_design"))
        for left, a, right, b in pairs:
            if a != b:
                raise ModelFileError(f"{self.files.talker.path.name} and {self.files.mmproj.path.name} do not fit: "
                                     f"{left} {a}, {right} {b}")
        if p.codes > c.codec_vocab or not all(0 <= t < c.codec_vocab for t in self._codec_tokens()):
            raise ModelFileError(f"{self.files.talker.path}: special codec tokens lie outside {c.codec_vocab} rows")
        self._check_shared_rows()

    def _codec_tokens(self) -> Iterator[int]:
        s = self.special
        yield from (s.codec_pad, s.codec_bos, s.codec_eos, s.think, s.nothink, s.think_bos, s.think_eos)
        yield from s.languages.values()

    def _check_shared_rows(self) -> None:
        """Both files store the codebook-0 embeddings: a few rows tell whether they come from one checkpoint."""
        rows = np.linspace(0, self.predictor_config.codes - 1, 16).astype(int)
        a = self.files.talker.rows("token_embd.weight", rows + self.config.text_vocab)
        b = self.files.mmproj.rows("a.gen.code.out_embd.weight", rows)
        with np.errstate(all="ignore"):
            cosine = float((a * b).sum() / np.sqrt(np.square(a).sum() * np.square(b).sum()))
        if not cosine >= PAIR_COSINE:
            raise ModelFileError(
                f"{self.files.talker.path.name} and {self.files.mmproj.path.name} are not of one checkpoint: their "
                f"codebook-0 embeddings have cosine {cosine:.2f}, expected at least {PAIR_COSINE}")

    # ---- requests -----------------------------------------------------------------------------------------------

    def check(self, request: SpeechRequest) -> None:
        """See `Engine.check`."""
        self._plan(request, seed=0)

    def _plan(self, request: SpeechRequest, seed: int) -> _Plan:
        body = self.tokenizer.encode(clean_text(request.text))
        speaker = None if request.voice is None else self._speaker_row(request.voice)
        prompt = build_prompt(self.special, body, language=request.language,
                              text_mode=request.text_mode or self.text_mode, speaker=speaker)
        room = self.config.context - len(prompt)
        # Text in the overlay takes a frame per token, so it must fit as well.
        needed = request.max_frames or len(prompt.overlay) + 1
        if needed > room:
            raise UsageError(f"text: {len(body)} tokens and {needed} frames do not fit the model's context of "
                             f"{self.config.context} positions; split the text or ask for fewer frames")
        max_frames = request.max_frames or min(BUDGET_BASE + BUDGET_PER_TOKEN * len(body), room)
        return _Plan(prompt, self._loop_options(request, seed, max_frames))

    def _speaker_row(self, voice: Voice) -> np.ndarray:
        if self.kind != "base":
            raise UsageError(f"voice: this is a {self.kind} checkpoint; cloning needs a Base checkpoint")
        hidden = self.config.transformer.hidden
        if len(voice.xvector) != hidden:
            raise UsageError(f"voice {voice.name!r}: its x-vector has {len(voice.xvector)} numbers, this model needs "
                             f"{hidden}; make it again with this model")
        return voice.xvector

    def _loop_options(self, r: SpeechRequest, seed: int, max_frames: int) -> LoopOptions:
        def override(default: SamplingOptions, temperature, top_k, top_p) -> SamplingOptions:
            given = {"temperature": 0.0 if r.greedy else temperature, "top_k": top_k, "top_p": top_p}
            return replace(default, **{name: value for name, value in given.items() if value is not None})

        d = self.defaults
        penalty = d.repeat_penalty if r.repeat_penalty is None else r.repeat_penalty
        return LoopOptions(override(d.talker, r.temperature, r.top_k, r.top_p),
                           override(d.predictor, r.sub_temperature, r.sub_top_k, r.sub_top_p),
                           penalty, self.special.codec_eos, seed, max_frames)

    # ---- work ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """See `Engine.load`."""
        if self.models is None:
            self.models = load_models(self.files.talker, self.files.mmproj, self.dtype, self.device)

    def speak(self, request: SpeechRequest, cancel: CancelToken | None = None) -> Speech:
        """See `Engine.speak`. Raises `UsageError` at once for what `check` would refuse."""
        seed = secrets.randbits(32) if request.seed is None else request.seed
        plan = self._plan(request, seed)
        return Speech(self._chunks(plan, request.chunk_frames, cancel or CancelToken()), self.sample_rate, seed)

    def _chunks(self, plan: _Plan, chunk_frames: tuple[int, ...], cancel: CancelToken) -> Iterator[AudioChunk]:
        self.load()
        yield from speech(self.models, self.embed(plan.prompt), plan.options, chunk_frames, cancel)

    def embed(self, prompt: Prompt) -> PromptRows:
        """Text rows come from the memory map, only those of this prompt; codec rows from the loaded table."""
        n = len(prompt)
        text = self.files.talker.rows("token_embd.weight", [*prompt.text, *prompt.overlay, prompt.pad])
        rows = torch.from_numpy(text).to(self.device)
        with torch.inference_mode():
            for i, item in enumerate(prompt.codec):
                if isinstance(item, np.ndarray):
                    rows[i] += torch.from_numpy(item).to(self.device)
                elif item is not None:
                    rows[i] += self.models.predictor.first_embedding[item]
        return PromptRows(rows[:n], rows[n:-1], rows[-1])

    def voice_from_clip(self, clip: np.ndarray, name: str) -> Voice:
        """See `Engine.voice_from_clip`."""
        if self.speaker_config is None:
            raise UsageError(f"cloning: a {self.kind} checkpoint has no speaker encoder; use a Base checkpoint")
        self.load()
        return Voice(name, _embed_clip(self.models.speaker_encoder, clip, self.device))


@dataclass(frozen=True)
class Codec:
    """Only the codec half of an mmproj file: codes to sound, and a clip to its x-vector."""

    code2wav: Code2Wav
    speaker_encoder: SpeakerEncoder | None
    device: torch.device

    def decode(self, codes: np.ndarray) -> Iterator[AudioChunk]:
        """Codes int [T, books] -> chunks, the last with finish reason "eos". Raises `UsageError` for bad codes."""
        c = self.code2wav.config
        if codes.ndim != 2 or codes.shape[1] != c.books or not np.issubdtype(codes.dtype, np.integer):
            raise UsageError(f"codes: expected integers of shape [frames, {c.books}], got {codes.dtype} {codes.shape}")
        if not len(codes) or codes.min() < 0 or codes.max() >= c.codes:
            raise UsageError(f"codes: expected at least one frame of values 0 to {c.codes - 1}")
        return self._decode(torch.from_numpy(codes.astype(np.int64)).to(self.device))

    def _decode(self, codes: torch.Tensor) -> Iterator[AudioChunk]:
        state, size = Code2WavState(), CHUNK_FRAMES[-1]
        for start in range(0, len(codes), size):
            last = start + size >= len(codes)
            yield decode_chunk(self.code2wav, list(codes[start:start + size]), state, "eos" if last else None)

    def embed(self, clip: np.ndarray) -> np.ndarray:
        """Mono 24 kHz float32 -> x-vector float32 [H]. Raises `UsageError` when the file has no speaker encoder."""
        if self.speaker_encoder is None:
            raise UsageError("this mmproj has no speaker encoder; use one of a Base checkpoint")
        return _embed_clip(self.speaker_encoder, clip, self.device)


def open_codec(mmproj: str | Path, *, device: str = "auto") -> Codec:
    """Load the codec half of an mmproj file. Raises `UsageError` or `ModelFileError`."""
    where = resolve_device(device)
    file = GGUFFile.open(mmproj)
    cfg.check_architecture(file, cfg.MMPROJ_ARCHITECTURE)
    return Codec(*load_codec(file, where), where)


def _embed_clip(encoder: SpeakerEncoder, clip: np.ndarray, device: torch.device) -> np.ndarray:
    if len(clip) < MIN_SAMPLES:
        raise UsageError(f"reference clip: {len(clip)} samples are too few, the speaker encoder needs at least "
                         f"{MIN_SAMPLES} ({1000 * MIN_SAMPLES / SAMPLE_RATE:.0f} ms)")
    with torch.inference_mode():
        xvector = encoder(log_mel(torch.from_numpy(np.ascontiguousarray(clip, np.float32)).to(device))).cpu().numpy()
    if not np.isfinite(xvector).all():
        raise TtsError("the speaker encoder gave no numbers for this clip; check the mmproj file (tts inspect)")
    return xvector
