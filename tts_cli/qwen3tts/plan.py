"""From a request to what the loop needs, by headers alone: everything that can be refused is refused here."""

from dataclasses import dataclass, replace

import numpy as np

from tts_cli import voice_store
from tts_cli.engine import SpeechRequest
from tts_cli.english.plain import plain
from tts_cli.errors import NothingToSpeak, UsageError
from tts_cli.qwen3tts.pair import SAME_CHECKPOINT, Pair, similarity
from tts_cli.qwen3tts.prompt import Prompt, Reference, build_prompt
from tts_cli.qwen3tts.sampling import SamplingOptions
from tts_cli.qwen3tts.steps import LoopOptions
from tts_cli.text import clean_text
from tts_cli.voices import Voice

# The automatic budget: a second for silence around the words, and as much as slow speech or spelled-out digits need per
# text token. One or two tokens, on which models run away most often, end within three seconds.
BUDGET_BASE, BUDGET_PER_TOKEN = 13, 12


@dataclass(frozen=True)
class Plan:
    """`reference`: codes int [T, 16] of the clip that the speech goes on from, or None."""

    prompt: Prompt
    options: LoopOptions
    text_mode: str
    reference: np.ndarray | None = None


def make_plan(pair: Pair, request: SpeechRequest, seed: int) -> Plan:
    """Raises `UsageError` for what this checkpoint cannot do."""
    if request.phonemes:
        raise UsageError(f"phonemes: {pair.name} reads words; Kokoro speaks from phonemes (-m builtin)")
    if request.speed != 1:
        raise UsageError(f"speed: {pair.name} chooses its own; Kokoro takes a speed (-m builtin)")
    text = clean_text(request.text)
    if pair.plain_english and not (text := plain(written := text)):
        raise NothingToSpeak(f"nothing to speak in {written[:20]!r}: {pair.name} reads English")
    body = pair.tokenizer.encode(text)
    language = pair.special.language(request.language)
    speaker, reference, voice = None, None, request.voice
    if voice is not None and pair.single_voice:
        raise UsageError(f"voice: {pair.name} speaks in one voice, which needs no name; Kokoro has "
                         "voices (-m builtin, where the extra \"builtin\" is installed)")
    if isinstance(voice, str) and pair.kind == "base":
        voice = voice_store.load(voice)
    if isinstance(voice, Voice):
        speaker, reference = _cloned(pair, voice)
    elif voice is not None:
        language, speaker = _named(pair, voice, language)
    text_mode = request.text_mode or pair.text_mode
    prompt = build_prompt(pair.special, body, language=language, text_mode=text_mode, speaker=speaker,
                          instruct=_instruction(pair, request.instruct), reference=reference)
    room = pair.config.context - len(prompt)
    # Text in the overlay takes a frame per token, so it must fit as well.
    needed = request.max_frames or len(prompt.overlay) + 1
    if needed > room:
        raise UsageError(f"text: {len(body)} tokens and {needed} frames do not fit the model's context of "
                         f"{pair.config.context} positions; split the text or ask for fewer frames")
    max_frames = request.max_frames or min(BUDGET_BASE + BUDGET_PER_TOKEN * len(body), room)
    # What lies beyond the last frame is never spoken, and its rows need not be read.
    prompt = replace(prompt, overlay=prompt.overlay[:max_frames])
    return Plan(prompt, loop_options(pair, request, seed, max_frames), text_mode,
                reference.codes if reference else None)


def loop_options(pair: Pair, r: SpeechRequest, seed: int, max_frames: int) -> LoopOptions:
    """The request's sampling values over the model's own."""
    def override(default: SamplingOptions, temperature, top_k, top_p) -> SamplingOptions:
        given = {"temperature": 0.0 if r.greedy else temperature, "top_k": top_k, "top_p": top_p}
        return replace(default, **{name: value for name, value in given.items() if value is not None})

    d = pair.sampling
    penalty = d.repeat_penalty if r.repeat_penalty is None else r.repeat_penalty
    return LoopOptions(override(d.talker, r.temperature, r.top_k, r.top_p),
                       override(d.predictor, r.sub_temperature, r.sub_top_k, r.sub_top_p),
                       penalty, pair.special.codec_eos, seed, max_frames)


def _cloned(pair: Pair, voice: Voice) -> tuple[np.ndarray, Reference | None]:
    """The speaker row, and for in-context cloning what the clip said."""
    if pair.kind != "base":
        raise UsageError(f"voice: this is a {pair.kind} checkpoint; cloning needs a Base checkpoint")
    hidden = pair.config.transformer.hidden
    if len(voice.xvector) != hidden:
        raise UsageError(f"voice {voice.name!r}: its x-vector has {len(voice.xvector)} numbers, this model needs "
                         f"{hidden}; make it again with this model")
    if voice.fingerprint is not None:
        cosine = similarity(voice.fingerprint, pair.fingerprint())
        if not cosine >= SAME_CHECKPOINT:
            raise UsageError(f"voice {voice.name!r} was made with the model {voice.model!r}, this is {pair.name!r} "
                             f"(fingerprint cosine {cosine:.2f}); make it again with this model")
    if voice.codes is None:
        return voice.xvector, None
    if voice.codes.shape[1] != pair.predictor.books or voice.codes.max() >= pair.predictor.codes:
        raise UsageError(f"voice {voice.name!r}: its codes do not fit this model's {pair.predictor.books} codebooks of "
                         f"{pair.predictor.codes}; make it again with this model")
    return voice.xvector, Reference(tuple(pair.tokenizer.encode(clean_text(voice.ref_text))), voice.codes)


def _named(pair: Pair, voice, language: str) -> tuple[str, int]:
    """(language, speaker row). A dialect speaker keeps the dialect unless another language is asked for."""
    if not isinstance(voice, str):
        raise UsageError(f"voice: {voice.name!r} is a voice of Kokoro (-m builtin), not of Qwen3-TTS")
    if pair.kind != "custom_voice":
        raise UsageError(f"voice: {voice!r} names a speaker, which only CustomVoice checkpoints have; a {pair.kind} "
                         "checkpoint takes a description of the voice: --instruct TEXT")
    name = pair.special.speaker(voice)
    if language in ("auto", "chinese"):
        language = pair.dialects.get(name, language)
    return language, pair.special.speakers[name]


def _instruction(pair: Pair, instruct: str | None) -> list[int]:
    if instruct is None or not instruct.strip():
        return []
    if pair.kind == "base":
        raise UsageError("instruct: a Base checkpoint does not follow instructions; CustomVoice and VoiceDesign do")
    return pair.tokenizer.encode(clean_text(instruct)) if pair.follows_instructions else []
