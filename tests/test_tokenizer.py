"""The tokenizer against ids of the reference implementation, and with damaged vocabularies."""

import json
import unicodedata

import pytest
from factory import tiny_pair
from tiny_model import DATA, byte_symbols, text_tokens

from tts_cli import ModelFileError, UsageError
from tts_cli.gguf.file import GGUFFile
from tts_cli.gguf.tokenizer import Tokenizer

SAMPLES = json.loads((DATA / "tokenizer.json").read_text(encoding="utf-8"))["samples"]


@pytest.fixture(scope="module")
def tokenizer(pair):
    with GGUFFile.open(pair[0]) as file:
        return Tokenizer.from_gguf(file)


def decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    order = byte_symbols()
    byte_of = {symbol: (ord(symbol) if ord(symbol) < 0x100 else None) for symbol in order}
    rest = iter(b for b in range(256) if chr(b) not in byte_of)
    byte_of = {symbol: next(rest) if b is None else b for symbol, b in byte_of.items()}
    return bytes(byte_of[c] for i in ids for c in tokenizer.token(i)).decode("utf-8")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: ascii(s["text"])[:20])
def test_ids_equal_the_reference(tokenizer, sample):
    assert tokenizer.encode(sample["text"]) == sample["ids"]


@pytest.mark.parametrize("text", ["<|im_start|>", "<|im_end|>", "<tts_text_eod>", "<|codec_5|>", "<|codec_eos_token|>",
                                  "<think>", "[PAD2001]", "say <|im_end|> now"])
def test_typed_control_tokens_are_characters(tokenizer, text):
    ids = tokenizer.encode(text)
    assert decoded(tokenizer, ids) == text
    assert max(ids) < text_tokens().index("<|endoftext|>")


@pytest.mark.parametrize("text", ["Zażółć gęślą jaźń", "मैं", "ไทย", "🧑‍🚀", "a\u0000b", "\r\n\r\n \t x  ", "١٢٣",
                                  "x" * 3000, "1234567890" * 200])
def test_every_text_survives(tokenizer, text):
    assert decoded(tokenizer, tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_text_is_normalised_first(tokenizer):
    assert tokenizer.encode("cafe\u0301") == tokenizer.encode("caf\u00e9")


def test_digits_stay_single_and_empty_text_is_empty(tokenizer):
    assert [tokenizer.token(i) for i in tokenizer.encode("2024")] == list("2024")
    assert tokenizer.encode("") == []


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(UsageError, match="character 3"):
        tokenizer.encode("abc\ud83d")


def test_tokens_by_name(tokenizer):
    assert tokenizer.find("<|codec_bos|>") == 2048 + 2149
    assert tokenizer.id("<tts_pad>") == text_tokens().index("<tts_pad>")
    assert tokenizer.token(2048) == "<|codec_0|>"
    assert tokenizer.find("<|codec_language_klingon|>") is None
    with pytest.raises(ModelFileError, match="required token '<|no|>' is missing"):
        tokenizer.id("<|no|>")


@pytest.mark.parametrize(("edits", "message"), [
    ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
    ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model' is missing"),
    ({"tokenizer.ggml.pre": "gpt-2"}, "tokenizer.ggml.pre is 'gpt-2'"),
    ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre' is missing"),
    ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens' is missing"),
    ({"tokenizer.ggml.tokens": ["a", "b"]}, "2 tokens but 5120 token types"),
    ({"tokenizer.ggml.tokens": ["a"] * 5120}, "tokens 0 and 1 are both 'a'"),
    ({"tokenizer.ggml.token_type": [3] * 5120}, "256 of the 256 byte symbols"),
    ({"tokenizer.ggml.token_type": None}, "token_type' is missing"),
    ({"tokenizer.ggml.merges": ["ab"]}, "merge 0 is 'ab'"),
    ({"tokenizer.ggml.merges": ["a b c"]}, "merge 0 is 'a b c'"),
    ({"tokenizer.ggml.merges": ["i n", " "]}, "merge 1 is ' '"),
    ({"tokenizer.ggml.merges": ["i n", "q \u1234"]}, "merge 1 is"),
    ({"tokenizer.ggml.merges": ["~ ~ "]}, "merge 0 is '~ ~ '"),
    ({"tokenizer.ggml.merges": [1, 2]}, "merges' is an array of 2"),
    ({"tokenizer.ggml.merges": None}, "merges' is missing"),
])
def test_damaged_vocabularies_are_refused(tmp_path, edits, message):
    talker, _ = tiny_pair(tmp_path, talker_edits=edits)
    with GGUFFile.open(talker) as file, pytest.raises(ModelFileError) as e:
        Tokenizer.from_gguf(file)
    assert message in str(e.value) and str(talker) in str(e.value)
