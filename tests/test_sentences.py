"""Where sentences end, in the languages the models speak."""

import pytest

from tts_cli.sentences import stops


def split(text):
    """The sentences between strong stops, trimmed."""
    ends = [0, *(stop.end for stop in stops(text, 0, len(text)) if stop.strong), len(text)]
    return [part for a, b in zip(ends, ends[1:], strict=False) if (part := text[a:b].strip())]


@pytest.mark.parametrize("sentences", [
    # English
    ["Dr. Smith met Mrs. J. R. Jones at St. Mary's.", "He left."],
    ["It cost $3.50, i.e. nothing, e.g. 1,000.5 pence.", "Really."],
    ["See fig. 3, vol. 2 and No. 5 on Dec. 24 for approx. 80 pages.", "Done."],
    ["No.", "I will not."],
    ["The U.S. Army left at 5 p.m. sharp.", "Then nothing."],
    ["Wait...", "What?!", "No!!!", "Yes…", "Well."],
    ["He left... then came back.", "Fine."],
    ['"Really?" she asked.', '"Yes."', "(So it was.)", "[End.]"],
    ["‘Go.’", "“Stop.”", "He went."],
    ["See https://a.b/c?d=1.2&e=f!g.", "Mail foo.bar@baz.com.", "Version v2.1.3 is out."],
    ["We met in 1999.", "2000 was better."],
    ["One.", "- Two.", "• Three.", "— Four."],
    ["Great! 😀🎉", "Next."],
    ["Smith & Sons Ltd. was sold.", "Then bought."],
    # German
    ["Am 3. Mai kam z. B. Dr. Müller, d. h. der Chef, um 10.30 Uhr.", "Gut."],
    ["Er ging bzw. Anna lief, vgl. Abb. 3 auf S. 12 von Prof. Maier.", "Ende."],
    ["Das kostet ca. 3 Mio. Euro inkl. Steuern.", "Viel."],
    ["„Ja.“", "»Nein.«", "Das war’s."],
    # French
    ["M. Dupont et Mme. Durand, p. ex. au no. 5, sont là.", "Bien."],
    ["Il dit : « Oui. »", "Puis il part.", "Ah !", "Vraiment ?", "Oui."],
    # Spanish
    ["El Sr. López y la Dra. Ruiz viven en EE.UU. Norte.", "¿Qué?", "¡Sí!", "(Sí.)", "Claro."],
    ["Véase la pág. 3 y el núm. 4 aquí.", "Así es."],
    # Italian
    ["Il sig. Rossi e la Dott.ssa Bianchi, pag. 5 o 6 del libro.", "Bene."],
    # Portuguese
    ["A Sra. Silva e o Exmo. Senhor, cap. 2, art. 5 da lei.", "Bom."],
    # Russian
    ["Проф. Иванов жил на ул. Ленина, т. е. в г. Москва, см. рис. 3 и стр. 5 ниже.", "Да."],
    ["А. С. Пушкин родился в 1799 г. в Москве.", "Вот."],
    # Scripts with stops of their own
    ["你好。", "今天天气好！", "是吗？", "真的?", "好!", "走吧"],
    ["“是的。”他说。", "「はい。」と言った。", "次。"],
    ["彼は言った。", "「行こう。」", "「はい。」"],
    ["３．５キロです。", "はい。"],
    ["यह है।", "वह था।"],
    ["هل هذا صحيح؟", "نعم."],
    ["안녕하세요.", "반갑습니다."],
])
def test_sentences(sentences):
    text = " ".join(sentences)
    assert split(text) == sentences
    if not any(character in text for character in "。।"):
        assert split("\n".join(sentences)) == sentences


@pytest.mark.parametrize("sentences", [
    ["你好。", "今天天气好！", "是吗？", "真的?", "好"],
    ["はい。", "いいえ。", "「行こう。」と言った。", "次"],
    ["他……走了…他说。", "好"],
])
def test_chinese_and_japanese_need_no_white_space(sentences):
    assert split("".join(sentences)) == sentences


def test_a_stop_before_small_letters_is_weak():
    assert [(stop.end, stop.strong) for stop in stops("all small. no capitals", 0, 22)] == [(10, False)]


def test_an_abbreviation_is_not_even_weak():
    assert not list(stops("Dr. X", 0, 5))


def test_only_the_asked_range_is_searched():
    text = "One. Two. Three."
    assert [stop.end for stop in stops(text, 5, 10)] == [9]
