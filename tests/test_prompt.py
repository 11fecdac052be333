"""The prompt as a table: both text layouts, language tags, speaker row."""

import numpy as np
import pytest

from tts_cli.errors import UsageError
from tts_cli.qwen3tts.engine import Qwen3TTSEngine
from tts_cli.qwen3tts.prompt import build_prompt


@pytest.fixture(scope="module")
def engine(pair):
    return Qwen3TTSEngine.open(*pair, device="cpu")


def table(engine, text="a b", **options):
    body = engine.pair.tokenizer.encode(text)
    options = {"language": "auto", "text_mode": "full"} | options
    options["language"] = engine.pair.special.language(options["language"])
    prompt = build_prompt(engine.pair.special, body, **options)
    rows = prompt.table(engine.pair.tokenizer, engine.pair.config.text_vocab)
    return rows, [engine.pair.tokenizer.token(t) for t in prompt.overlay]


ROLE = [("<|im_start|>", ""), ("assistant", ""), ("Ċ", "")]
AUTO = [("<tts_pad>", "<|codec_nothink|>"), ("<tts_pad>", "<|codec_think_bos|>"), ("<tts_pad>", "<|codec_think_eos|>")]


def test_full_layout_holds_all_text_and_overlays_nothing(engine):
    rows, overlay = table(engine)
    assert rows == [*ROLE, *AUTO, ("<tts_text_bos>", "<|codec_pad|>"), ("a", "<|codec_pad|>"),
                    ("Ġb", "<|codec_pad|>"), ("<tts_text_eod>", "<|codec_pad|>"), ("<tts_pad>", "<|codec_bos|>")]
    assert overlay == []


def test_streaming_layout_holds_one_token_and_overlays_the_rest(engine):
    rows, overlay = table(engine, text_mode="streaming")
    assert rows == [*ROLE, *AUTO, ("<tts_text_bos>", "<|codec_pad|>"), ("a", "<|codec_bos|>")]
    assert overlay == ["Ġb", "<tts_text_eod>"]


@pytest.mark.parametrize("language", ["english", "English", "EN", "en", " en "])
def test_language_by_name_or_code_in_any_case(engine, language):
    rows, _ = table(engine, language=language)
    assert [codec for _, codec in rows[3:7]] == [
        "<|codec_think|>", "<|codec_think_bos|>", "<|codec_language_english|>", "<|codec_think_eos|>"]


@pytest.mark.parametrize("language", ["xx", "", "klingon", "e n"])
def test_unknown_language_lists_the_choices(engine, language):
    with pytest.raises(UsageError, match=r"auto, .*english \(en\).*chinese \(zh\)|auto, .*chinese \(zh\).*english"):
        table(engine, language=language)


def test_speaker_row_stands_before_the_text(engine):
    rows, _ = table(engine, speaker=np.zeros(64, np.float32))
    assert rows[6] == ("<tts_pad>", "vector[64]")
    assert rows[7] == ("<tts_text_bos>", "<|codec_pad|>")


@pytest.mark.parametrize("text", ["say <|im_end|> now", "<tts_text_eod>", "<|im_start|>user", "<|codec_5|>",
                                  "<|codec_eos_token|>"])
def test_typed_control_tokens_are_ordinary_characters(engine, text):
    body = engine.pair.tokenizer.encode(text)
    control = {i for i, t in enumerate(engine.pair.tokenizer.tokens) if t.startswith(("<|", "<tts"))}
    assert len(body) > 1 and not control & set(body)
    assert max(body) < engine.pair.config.text_vocab


@pytest.mark.parametrize("around", ["\n{}", "\n\n\n{}", "{}\n", " {}", "\t {} \r\n"])
def test_white_space_around_the_text_changes_nothing(engine, around):
    """Joined to the template, a leading newline would become another token and shift the role rows."""
    from tts_cli.engine import SpeechRequest

    plain = engine.plan(SpeechRequest("Hello there")).prompt
    padded = engine.plan(SpeechRequest(around.format("Hello there"))).prompt
    assert (padded.text, padded.overlay) == (plain.text, plain.overlay)
