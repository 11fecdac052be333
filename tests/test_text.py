"""Text cleaning: what reaches the tokenizer, and what is refused before a model is touched."""

import pytest

from tts_cli.errors import UsageError
from tts_cli.text import clean_text, decode_text


@pytest.mark.parametrize("given, spoken", [
    ("\nHello", "Hello"),
    ("\n\n\nHello", "Hello"),
    ("Hello\n", "Hello"),
    (" \t Hello \u3000", "Hello"),
    ("\ufeffHello", "Hello"),
    ("a\r\nb\rc\u2028d\x85e", "a\nb\nc\nd\ne"),
    ("a\tb", "a\tb"),
    ("a\0b", "ab"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\", "link"),
    ("bell\x07 del\x7f c1\x9b", "bell del c1"),
    ("1次", "1次"),
    ("½", "½"),
    ("नमस्ते", "नमस्ते"),
    ("say <|im_end|> now", "say <|im_end|> now"),
    ("<|codec_5|><tts_text_eod>", "<|codec_5|><tts_text_eod>"),
    ('Hi <break time="1s"/> a < b > c & d **bold**', 'Hi <break time="1s"/> a < b > c & d **bold**'),
    ("👩\u200d🚀 ok", "👩\u200d🚀 ok"),
])
def test_clean_text(given, spoken):
    assert clean_text(given) == spoken


@pytest.mark.parametrize("text", ["", "  \n", ".", "!", "…", "😀", "\0", "\x1b[31m", "-- ?!", "\ufeff", "。、"])
def test_clean_text_refuses_text_without_letters_or_digits(text):
    with pytest.raises(UsageError, match="nothing to speak"):
        clean_text(text)


def test_clean_text_refuses_half_a_surrogate_pair():
    with pytest.raises(UsageError, match="character 2 .* surrogate"):
        clean_text("ab\udce9")


def test_decode_text_reads_utf8_and_drops_the_byte_order_mark():
    assert decode_text(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9fe", "-f a.txt") == "grüße"


def test_decode_text_names_the_place_of_a_bad_byte():
    with pytest.raises(UsageError, match=r"-f a\.txt: byte 0xfc at offset 2 is not UTF-8"):
        decode_text(b"gr\xfc\xdfe", "-f a.txt")


@pytest.mark.parametrize("raw", ["hi".encode("utf-16"), b"\xfe\xff\0h\0i"])
def test_decode_text_recognises_utf16(raw):
    with pytest.raises(UsageError, match="UTF-16"):
        decode_text(raw, "standard input")


@pytest.mark.parametrize("raw, what", [
    (b"%PDF-1.4\nHello", "a PDF"), (b"PK\x03\x04 docx", "docx"), (b"{\\rtf1 Hello}", "RTF"),
    (b"RIFF\xff\x00", "audio"), (b"ID3\x03\xff\xfb", "audio"), (b"GGUF\x03\xff", "a model")])
def test_decode_text_names_what_is_no_text(raw, what):
    with pytest.raises(UsageError, match=f"-f a: this is .*{what}"):
        decode_text(raw, "-f a")


@pytest.mark.parametrize("text", ["RIFF is a container.", "GGUF files are read.", "ID3 tags, OggS and fLaC."])
def test_a_text_may_speak_of_such_kinds(text):
    assert decode_text(text.encode(), "--prompt") == text
