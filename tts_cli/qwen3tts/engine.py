"""Qwen3-TTS behind the `Engine` protocol: a pair of files, its models and the loop joined.

Opening reads headers only, so that everything a request can get wrong is refused before any weight is read.
"""

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import tts_cli
from tts_cli import voice_store
from tts_cli.device import resolve_device, resolve_dtype
from tts_cli.engine import AudioChunk, CancelToken, Speech, SpeechRequest
from tts_cli.english import plain
from tts_cli.errors import UsageError
from tts_cli.qwen3tts.codec import NO_CODEC_ENCODER, embed_clip, encode_clip
from tts_cli.qwen3tts.generate import speech
from tts_cli.qwen3tts.layers import KVCache
from tts_cli.qwen3tts.pair import Pair
from tts_cli.qwen3tts.plan import Plan, make_plan
from tts_cli.qwen3tts.prompt import Prompt
from tts_cli.qwen3tts.static_steps import ROWS, StaticModels
from tts_cli.qwen3tts.steps import PromptRows
from tts_cli.qwen3tts.weights import Models, load_models, load_speaker_encoder
from tts_cli.text import clean_text
from tts_cli.utterances import Utterance, at_most
from tts_cli.voices import Voice, load_voice

# An installed package carries the samples inside; a source tree has them beside it.
REFERENCE_CLIP = next((path for folder in (Path(tts_cli.__file__).parent, Path(tts_cli.__file__).parent.parent)
                       if (path := folder / "samples" / "reference.flac").is_file()), None)
TOGETHER = 4
KEPT_PREFIXES = 4  # of recent voices; one of a ten-second clip with transcript takes some 30 MB


class Qwen3TTSEngine:
    """See `tts_cli.engine.Engine`. Created by `open`.

    compiled  on the CPU, compute with the files' own bytes rather than with torch's modules, as other devices do
    graphs    on a CUDA device, replay captured graphs rather than start every kernel by itself
    """

    def __init__(self, pair: Pair, device: torch.device, dtype: torch.dtype, compiled: bool = True,
                 graphs: bool = True):
        self.pair, self.device, self.dtype, self.compiled, self.graphs = pair, device, dtype, compiled, graphs
        self.sample_rate = pair.code2wav.sample_rate
        self.models: Models | None = None
        self._prefixes: OrderedDict[bytes, KVCache] = OrderedDict()
        self._reading_prefix = threading.Lock()

    @classmethod
    def open(cls, model: str | Path, mmproj: str | Path | None = None, *, device: str = "auto",
             dtype: str = "auto", compiled: bool = True, graphs: bool = True) -> "Qwen3TTSEngine":
        """See `tts_cli.loading.open_engine`."""
        where = resolve_device(device)
        # On the CPU weights are read as stored and only what is wider becomes bfloat16, whose arithmetic is float32.
        what = resolve_dtype("bfloat16" if dtype == "auto" and where.type == "cpu" else dtype, where)
        return cls(Pair.open(model, mmproj), where, what, compiled, graphs)

    @property
    def kind(self) -> str:
        return self.pair.kind

    @property
    def unused(self) -> frozenset[str]:
        ignored = self.kind == "custom_voice" and not self.pair.follows_instructions
        return frozenset(("early", "instruct") if ignored else ("early",))

    @property
    def paths(self) -> list[Path]:
        return [self.pair.talker.path, self.pair.mmproj.path]

    @property
    def first_run(self) -> str | None:
        if not (self.compiled and self.device.type == "cpu"):
            return None
        from tts_cli.compiled import kernels  # numba takes a while to import

        return None if kernels.are_kept() else "compiling for this processor"

    @property
    def languages(self) -> list[str]:
        return self.pair.special.public_languages

    @property
    def voice_names(self) -> list[str]:
        return voice_store.names() if self._clones else sorted(self.pair.special.speakers)

    def voice_paths(self, spec: str) -> list[Path]:
        """See `Engine.voice_paths`."""
        return voice_store.paths(spec) if self._clones else []

    default_voice = None  # a name must be given

    @property
    def default_clip(self) -> Path | None:
        """The recording a Base model speaks like when no voice is given; it would choose one at random."""
        return REFERENCE_CLIP if self._clones else None

    @property
    def _clones(self) -> bool:
        return self.kind == "base" and not self.pair.single_voice

    @property
    def together(self) -> int:
        """See `Engine.together`. More rows than these cost as much as they bring (0.6B: 1, 2, 4, 8 utterances take 245,
        210, 150, 145 ms a frame of each, code2wav included)."""
        if self.device.type == "cuda":
            return ROWS
        return TOGETHER if self.compiled and self.device.type == "cpu" else 1

    @property
    def text_mode(self) -> str:
        return self.pair.text_mode

    def describe(self) -> list[str]:
        """See `Engine.describe`."""
        dtype = str(self.dtype).removeprefix("torch.")
        return [f"model: {self.pair.talker.path} ({self.kind}) with {self.pair.mmproj.path}",
                f"device: {self.device}, {dtype}, {torch.get_num_threads()} CPU threads",
                f"languages: auto, {', '.join(self.languages)}",
                f"text mode: {self.text_mode} unless --text-mode says otherwise",
                *self._describe_sampling()]

    def _describe_sampling(self) -> list[str]:
        defaults = self.pair.sampling
        rows = (("sampling", defaults.talker), ("code predictor", defaults.predictor))
        lines = [f"{name} defaults: temp {options.temperature:g}, top-k {options.top_k}, top-p {options.top_p:g}"
                 for name, options in rows]
        return [f"{lines[0]}, repeat-penalty {defaults.repeat_penalty:g}", lines[1]]

    def check(self, request: SpeechRequest) -> None:
        """See `Engine.check`."""
        make_plan(self.pair, request, seed=0)

    def plan(self, request: SpeechRequest, seed: int = 0) -> Plan:
        """The prompt and options of a request. Raises `UsageError`."""
        return make_plan(self.pair, request, seed)

    def parts(self, pieces: Iterable[Utterance]) -> Iterator[Utterance]:
        """See `Engine.parts`. Signs become words before their letters are counted."""
        return at_most(self.pair.max_chars, plain.plain_pieces(pieces) if self.pair.plain_english else pieces)

    def unread(self, request: SpeechRequest) -> list[str]:
        """See `Engine.unread`: every byte has a token, but a model of plain English reads its letters alone."""
        return plain.unread(request.text) if self.pair.plain_english else []

    def load(self) -> None:
        """See `Engine.load`."""
        if self.models is None:
            models = load_models(self.pair.talker, self.pair.mmproj, self.dtype, self.device, self.compiled)
            if self.device.type == "cuda":
                models.static = StaticModels(models.talker, models.predictor, self.device, self.graphs)
            self.models = models

    def speak(self, request: SpeechRequest, cancel: CancelToken | None = None) -> Speech:
        """See `Engine.speak`. Raises `UsageError` at once for what `check` would refuse."""
        seed = secrets.randbits(32) if request.seed is None else request.seed
        plan = self.plan(request, seed)
        return Speech(self._chunks(plan, request, cancel or CancelToken()), self.sample_rate, seed)

    def _chunks(self, plan: Plan, request: SpeechRequest, cancel: CancelToken) -> Iterator[AudioChunk]:
        self.load()
        reference = None if plan.reference is None else self._codes(plan.reference)
        rows = self.embed(plan.prompt)
        rows = replace(rows, prefix=self._prefix(rows.rows[:plan.prompt.fixed]))
        yield from speech(self.models, rows, plan.options, request.chunk_frames, cancel, reference,
                          request.in_turns)

    def _prefix(self, rows: torch.Tensor) -> KVCache:
        """The talker's cache of the rows that voice, language and instruction make, kept for the next utterance.

        They are read by themselves the first time, too: so a repeated utterance has the very same numbers.
        """
        key = hashlib.sha256(rows.cpu().numpy().tobytes()).digest()
        with self._reading_prefix:
            if key not in self._prefixes:
                with torch.inference_mode():
                    self._prefixes[key] = self.models.talker.read(rows)
                while len(self._prefixes) > KEPT_PREFIXES:
                    self._prefixes.popitem(last=False)
            self._prefixes.move_to_end(key)
            return self._prefixes[key]

    def embed(self, prompt: Prompt) -> PromptRows:
        """Text rows come from the memory map, only those of this prompt; codec rows from the loaded tables."""
        n, predictor = len(prompt), self.models.predictor
        text = self.pair.talker.rows("token_embd.weight", [*prompt.text, *prompt.overlay, prompt.pad])
        rows = torch.from_numpy(text).to(self.device)
        with torch.inference_mode():
            for i, item in enumerate(prompt.codec):
                if isinstance(item, np.ndarray):
                    rows[i] += torch.from_numpy(item).to(self.device)
                elif isinstance(item, tuple):
                    rows[i] += predictor.embed_frame(self._codes(item))
                elif item is not None:
                    rows[i] += predictor.first_embedding[item]
        return PromptRows(rows[:n], rows[n:-1], rows[-1])

    def _codes(self, codes) -> torch.Tensor:
        return torch.as_tensor(codes, dtype=torch.int64, device=self.device)

    def check_cloning(self, transcript: bool) -> None:
        """Refuse, by headers alone, what `voice_from_clip` could not do. Raises `UsageError`."""
        if self.pair.speaker_encoder is None:
            raise UsageError(f"cloning: a {self.kind} checkpoint has no speaker encoder; use a Base checkpoint")
        if self.pair.single_voice:
            raise UsageError(f"cloning: {self.pair.name} was trained on one voice; use a Base checkpoint of Qwen3-TTS")
        if transcript and self.pair.codec_encoder is None:
            raise UsageError(NO_CODEC_ENCODER.format(self.pair.mmproj.path.name))

    def voice_from_clip(self, clip: np.ndarray, name: str, ref_text: str | None = None) -> Voice:
        """See `Engine.voice_from_clip`. With `ref_text`, what the clip says, the voice is cloned in context."""
        self.check_cloning(ref_text is not None)
        xvector = embed_clip(load_speaker_encoder(self.pair.mmproj, self.device), clip, self.device)
        codes = None if ref_text is None else encode_clip(self.pair.mmproj, clip, self.device)
        return Voice(name, xvector, codes, None if ref_text is None else clean_text(ref_text),
                     self.pair.fingerprint(), self.pair.name)

    def phonemes(self, text: str, voice=None, language: str = "auto") -> str:
        """See `Engine.phonemes`."""
        raise UsageError("Qwen3-TTS reads words and has no phonemes; Kokoro has (-m builtin)")

    def voice_from_file(self, path: Path) -> Voice:
        """See `Engine.voice_from_file`."""
        return load_voice(path)
