"""`--explain`: the prompt a request makes, as a table, without weights and without speaking."""

from dataclasses import replace

import numpy as np

from tts_cli.cli import options as o
from tts_cli.cli.console import Console
from tts_cli.errors import UsageError
from tts_cli.manner import Manner
from tts_cli.model_choice import ModelChoice
from tts_cli.voices import Voice


def print_prompt(choice: ModelChoice, manner: Manner, text: str, console: Console) -> int:
    """One row a position of the first utterance: text token and codec token or vector. Raises `UsageError`."""
    clip = manner.read_clip(console)
    engine = choice.open(Console(quiet=True))
    pair = getattr(engine, "pair", None)
    if pair is None:
        raise UsageError("--explain shows the prompt of Qwen3-TTS, which -m TALKER.gguf or -hf OWNER/NAME names; this "
                         "model has none")
    manner.check_cloning(engine)
    manner = manner.with_voice_file(engine)
    if clip is not None or manner.needs_a_voice(engine):
        manner = replace(manner, request=replace(manner.request, voice=_outline(pair, manner, clip)))
    with o.flags_named():
        first = next(engine.parts(manner.pieces(text)))
        plan = engine.plan(replace(manner.request, text=first.text))
    rows = plan.prompt.table(pair.tokenizer, pair.config.text_vocab)
    width = max(len(name) for name, _ in rows)
    print(f"{'row':>5}  {'id':>6}  {'text':<{width}}  codec")
    for row, (token, (name, codec)) in enumerate(zip(plan.prompt.text, rows, strict=True)):
        print(f"{row:>5}  {token:>6}  {name:<{width}}  {codec}".rstrip())
    later = " ".join(pair.tokenizer.token(token) for token in plan.prompt.overlay) or "nothing"
    talker, predictor = plan.options.talker, plan.options.predictor
    print(f"\nlayout: {plan.text_mode}; with each frame to come: {later}, then <tts_pad>")
    print(f"at most {plan.options.max_frames} frames; repeat-penalty {plan.options.repeat_penalty:g}")
    for name, options in (("talker", talker), ("code predictor", predictor)):
        print(f"{name}: temp {options.temperature:g}, top-k {options.top_k}, top-p {options.top_p:g}")
    return 0


def _outline(pair, manner: Manner, clip) -> Voice:
    """A voice of the right shape for a clip that no network has heard."""
    frames = 0 if clip is None else -(-len(clip) // pair.code2wav.samples_per_frame)
    codes = None if manner.ref_text is None else np.zeros((frames, pair.predictor.books), np.int32)
    return Voice("clip", np.zeros(pair.config.transformer.hidden, np.float32), codes, manner.ref_text)
