"""English phonemes, tokens that keep their source, and the other languages' packages."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import hibari
import pytest

from tts_cli.errors import UsageError
from tts_cli.kokoro.g2p import SYMBOLS, Token, english, for_language, phoneme_string


def us(text):
    return phoneme_string(english(False).phonemes(text))


def gb(text):
    return phoneme_string(english(True).phonemes(text))


def joined(tokens):
    return "".join(token.text + " " * token.whitespace_after for token in tokens)


def test_the_symbols_are_the_models():
    vocabulary = json.loads((Path(hibari.__file__).parent / "assets" / "vocab.json").read_text(encoding="utf-8"))
    assert set(vocabulary) == SYMBOLS


@pytest.mark.parametrize(("text", "american", "british"), [
    ("Hello there.", "həlˈO ðˈɛɹ.", "həlˈQ ðˈɛː."),
    ("I read it yesterday; I will read it.", "ˌI ɹˈɛd ɪt jˈɛstəɹdˌA; ˌI wɪl ɹˈid ɪt.",
     "ˌI ɹˈɛd ɪt jˈɛstədA; ˌI wɪl ɹˈiːd ɪt."),
    ("$12.50", "twˈɛlv dˈɑləɹz ænd fˈɪfti sˈɛnts", "twˈɛlv dˈɒləz and fˈɪfti sˈɛnts"),
    ("James's dogs' bones can't", "ʤˈAmzᵻz dˈɔɡz bˈOnz kˈænt", "ʤˈAmzɪz dˈɒɡz bˈQnz kˈɑːnt"),
    ("NASA, the FBI's GPUs", "nˈæsə, ði ˌɛfbˌiˈIz ʤˌipˌijˈuz", "nˈasə, ði ˌɛfbˌiːˈIz ʤˌiːpˌiːjˈuːz"),
])
def test_sentences(text, american, british):
    assert us(text) == american
    assert gb(text) == british


@pytest.mark.parametrize(("text", "phonemes"), [
    ("well-known", "wˌɛlnˈOn"),
    ("the apple, the pear", "ði ˈæpᵊl, ðə pˈɛɹ"),
    ("café naïve", "kæfˈA nIˈiv"),
    ("zorblax", "zˈɔɹblæks"),  # in no dictionary
    ("MP3", "ˌɛmpˈi θɹˈi"),
    ("3.5", "θɹˈi pYnt fˈIv"),
    ("a.b@c.uk", "ˈA dˈɑt bˈi æt sˈi dˈɑt jˌukˈA"),
    ("THE CAT SAT HERE", "ðə kˈæt sˈæt hˈɪɹ"),
    ("A", "ˈA"),
])
def test_words(text, phonemes):
    assert us(text) == phonemes


def test_quotes_are_kept_and_do_not_change_the_words():
    assert us('He said "read this" and “left”.') == "hˌi sˈɛd “ɹˈɛd ðɪs” ænd “lˈɛft”."
    assert us('"Go," she said.') == us("“Go,” she said.")
    quoted = us('The "record" was "live" today.')
    assert quoted.replace("“", "").replace("”", "") == us("The record was live today.")


def test_given_phonemes_are_taken_as_they_are():
    tokens = english(False).phonemes("Say [Kokoro](/kˈokoɾo/), please.")
    assert tokens[1] == Token("[Kokoro](/kˈokoɾo/)", "kˈokoɾo", False)
    assert phoneme_string(tokens) == "sˈA kˈokoɾo, plˈiz."
    assert us("[two words](/gˈO/)") == "ɡˈO"


@pytest.mark.parametrize("text", ["[bad](/日本/)", "[x](/ˈɛks)", "[](/a/)", "[x](/a/b/)", "[x](//)", "[a[b](/kˈæt/"])
def test_malformed_phonemes_are_spoken_as_text(text):
    tokens = english(False).phonemes(text + " end")
    assert joined(tokens) == text + " end"
    assert tokens[-1].phonemes == "ˈɛnd"


def test_a_token_is_a_written_word_with_its_whole_reading():
    tokens = english(False).phonemes('It cost  $12.50 on\nMay 5, "honest" 😀 (really)!')
    assert [token.text for token in tokens] == [
        "It", "cost", "$12.50", "on", "May", "5", ",", '"', "honest", '" 😀', "(", "really", ")", "!"]
    assert joined(tokens) == 'It cost $12.50 on May 5, "honest" 😀 (really)!'
    assert Token("$12.50", "twˈɛlv dˈɑləɹz ænd fˈɪfti sˈɛnts", True) in tokens
    assert Token("5", "fˈɪfθ", False) in tokens


@pytest.mark.parametrize("text", ["", "  \n", "!", "…", "😀", "Привет", '"', "***"])
def test_text_without_words_gives_nothing(text):
    assert english(False).phonemes(text) == []


@pytest.mark.parametrize("text", ["1次", "OK", "7", "№3", "1999", "-5", "1,000.5", "½", "a"])
def test_short_text_is_spoken(text):
    assert us(text)


@pytest.mark.parametrize("text", ["word" * 1000, "9" * 4000, "aA" * 2000, "a-" * 2000, "a/" * 2000, "(" * 4000 + "a",
                                  "[x](/" * 800, "a'" * 2000])
def test_four_thousand_characters_without_a_space_are_read(text):
    tokens = english(False).phonemes(text)
    assert joined(tokens) == text
    assert len(phoneme_string(tokens)) > 500


def test_any_text_keeps_its_source_and_stays_in_the_vocabulary():
    pick = random.Random(7)
    pieces = [*"aeI .,;:!?'\"“”’—–-…()[]{}/\\@#$%&*+=<>|~^_`0123456789éßłšİƶΩπ²½№日р😀\n\t", "St. ", "10:45", "Dr. ",
              "$5", "v2", "www.", ".com", "1st", "p.m. ", "](/", "/)", " IV ", "http://", "Mar. 5 ", "1/2", "°C",
              "\u0301", "\u200d"]
    for british in (False, True):
        for _ in range(150):
            text = "".join(pick.choices(pieces, k=pick.randint(1, 60)))
            tokens = english(british).phonemes(text)
            assert all(token.phonemes and SYMBOLS.issuperset(token.phonemes) for token in tokens), text
            if tokens:
                assert joined(tokens) == " ".join(text.split()), text


def test_the_letter_chooses_the_language():
    assert for_language("a") is english(False)
    assert for_language("b") is english(True)
    with pytest.raises(UsageError, match="language 'x' is unknown"):
        for_language("x")


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    english.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"onnxruntime.*pip install '.\[builtin\]'"):
        english(False)
    monkeypatch.setitem(sys.modules, "misaki", None)
    for_language.cache_clear()
    with pytest.raises(UsageError, match=r"Japanese needs the package misaki.*pip install 'misaki\[ja\]'"):
        for_language("j")


def test_an_installed_language_is_used(monkeypatch):
    class Espeak:
        def __init__(self, language):
            self.language = language

        def __call__(self, text):
            return f"ˈola {self.language} ñ日", None

    package, module = ModuleType("misaki"), ModuleType("misaki.espeak")
    module.EspeakG2P = Espeak
    monkeypatch.setitem(sys.modules, "misaki", package)
    monkeypatch.setitem(sys.modules, "misaki.espeak", module)
    for_language.cache_clear()
    assert for_language("e").phonemes(" Hola  amigo ") == [Token("Hola amigo", "ˈola es", False)]
    for_language.cache_clear()


def test_nothing_is_noted_about_the_person_or_sent(tmp_path):
    """onnxruntime, left to itself, keeps a device number in the home and a queue of what to report."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ORT_"))}
    done = subprocess.run([sys.executable, "-m", "tts_cli", "--phonemes", "-p", "Hi"], cwd=Path(__file__).parent.parent,
                          env=environment | {"HOME": str(tmp_path)}, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hˈI\n", "") and not list(tmp_path.rglob("*"))
