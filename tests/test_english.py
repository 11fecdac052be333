"""How written English is said: no package and no model is needed for these."""

import pytest

from tts_cli.english import parts
from tts_cli.english.numbers import cardinal, number, ordinal, roman, year
from tts_cli.english.spoken import RULES, spoken_form, unread

SAID = {
    # integers, decimals, negative numbers
    "with 82 million": "with eighty two million",
    "-5": "minus five",
    "−5 to −10": "minus five to minus ten",
    "1,000.5": "one thousand point five",
    "0.05, .5 and 3.14": "zero point zero five, point five and three point one four",
    "1,234,567": "one million two hundred thirty four thousand five hundred sixty seven",
    "1.000.000": "one million",
    "007": "zero zero seven",
    "1234567890123456": "one two three four five six seven eight nine zero one two three four five six",
    "٣": "three",
    # years and decades
    "1999": "nineteen ninety nine",
    "1066, 1905, 2000, 2005, 2024": "ten sixty six, nineteen oh five, two thousand, two thousand five, "
                                    "twenty twenty four",
    "1500 people": "fifteen hundred people",
    "the 1990s, the '80s": "the nineteen nineties, the eighties",
    "pre-2000": "pre two thousand",
    # ordinals
    "1st, 2nd, 3rd, 12th, 21st, 101st": "first, second, third, twelfth, twenty first, one hundred first",
    "1,000th": "one thousandth",
    # money
    "$12.50": "twelve dollars and fifty cents",
    "$1, £1 and €0.99": "one dollar, one pound and ninety nine cents",
    "-$5": "minus five dollars",
    "$3.5 million or $2M": "three point five million dollars or two million dollars",
    "$5-10": "five to ten dollars",
    "20 € and USD 20": "twenty euros and twenty U.S. dollars",
    "50¢": "fifty cents",
    "$5/month": "five dollars per month",
    # percent, units, temperatures
    "50%, 3.5 %": "fifty percent, three point five percent",
    "10-20%": "ten to twenty percent",
    "5 km, 1 kg, 10kg": "five kilometers, one kilogram, ten kilograms",
    "60 km/h": "sixty kilometers per hour",
    "a 5-km run": "a five kilometer run",
    "2.4 GHz, 16GB": "two point four gigahertz, sixteen gigabytes",
    "-5 °C": "minus five degrees Celsius",
    "6'2\" tall": "six foot two tall",
    # times
    "10:45": "ten forty five",
    "10:05 p.m.": "ten oh five P.M.",
    "3pm": "three P.M",
    "10:00": "ten o'clock",
    "9am-5pm": "nine A.M to five P.M",
    "at 5 p.m. She left": "at five P.M. She left",
    # dates
    "March 5, 2024": "March fifth, twenty twenty four",
    "5 March 2024": "the fifth of March twenty twenty four",
    "2024-03-05": "March fifth, twenty twenty four",
    "3/5/2024": "March fifth, twenty twenty four",
    "31/12/2024": "December thirty first, twenty twenty four",
    "Mar. 5": "March fifth",
    # fractions, ranges, scores
    "3/4, 1/2, 3/8": "three quarters, one half, three eighths",
    "2 1/2 and 2½": "two and a half and two and a half",
    "24/7": "twenty four seven",
    "22/7": "twenty two over seven",
    "1990–1995": "nineteen ninety to nineteen ninety five",
    "pp. 5-7": "pages five to seven",
    "16:9": "sixteen to nine",
    # sums
    "5 - 3 = 2": "five minus three equals two",
    "2+2": "two plus two",
    "3x4 and 10^-3": "three times four and ten to the power of minus three",
    "10⁶, H₂O, ③": "ten to the power of six, H two O, three",
    "x² ≈ π": "x squared about pi",
    # numbers in names
    "№3, No. 5, #7": "number three, number five, number seven",
    "v2.1": "version two point one",
    "192.168.0.1": "one ninety two dot one sixty eight dot zero dot one",
    "1.2.3": "one point two point three",
    "MP3, B2B, COVID-19, GPT-4": "MP three, B two B, COVID nineteen, GPT four",
    "555-1234": "five five five, one two three four",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "+44 20 7946 0958": "four four, two zero, seven nine four six, zero nine five eight",
    # Roman numerals, where the word before makes them safe
    "Chapter IV, World War II": "Chapter four, World War two",
    "Henry VIII and Louis XIV": "Henry the eighth and Louis the fourteenth",
    "Henry I think so": "Henry I think so",
    "I, V, X": "I, V, X",
    # addresses
    "https://a.b/c?d=1": "A dot B slash C question mark D equals one",
    "see www.example.com/docs.": "see example dot com slash docs.",
    "foo@bar.com": "foo at bar dot com",
    "main.py": "main dot py",
    # abbreviations
    "e.g. this": "for example this",
    "Main St. near St. Paul": "Main Street near Saint Paul",
    "Prof. Lee vs. Acme Inc.": "Professor Lee versus Acme Incorporated.",
    "C++ and C#": "C plus plus and C sharp",
    "20 ℃ or 68℉, 5 ㎞, 3㎡ and 2 ㎏": "twenty degrees Celsius or sixty eight degrees Fahrenheit, five kilometers, "
                                        "three square meters and two kilograms",
    "in ℃, in ㎏, µ": "in degrees Celsius, in kilograms, micro",
    "Mon.-Fri., Sat–Sun, Tue - Thu.": "Monday to Friday, Saturday to Sunday, Tuesday to Thursday.",
    "42 Elm St. Tomorrow, 221B Baker St. Call. St. Paul": "forty two Elm Street. Tomorrow, two hundred twenty one B "
                                                          "Baker Street. Call. Saint Paul",
    # marks
    "wait... no!!! yes?!": "wait… no! yes?",
    "one -- two - three": "one — two — three",
    "**bold** `code` snake_case": "bold code snake case",
    "# Title\n- item": "Title item",
    "a < b > c & d": "a less than b greater than c and d",
    "and/or": "and slash or",
    "[x] {y}": "(x) (y)",
    "‘single’ 'quotes'": "single quotes",
    "it’s o’clock": "it's o'clock",
    "party 🎉! 👨‍👩‍👧": "party!",
    "ﬁne ＡＢＣ": "fine ABC",
    "Hi <break time=\"1s\"/>": "Hi less than break time equals \"one s\" slash greater than",
    "[Kokoro](/kˈOkəɹO/) speaks": "Kokoro speaks",
    "[bad](/日本/)": "(bad)( slash slash)",
    "Room 305, $12.50, 3/4, 10:45, v2.1": "Room three hundred five, twelve dollars and fifty cents, three quarters, "
                                          "ten forty five, version two point one",
}


@pytest.mark.parametrize("text", SAID)
def test_text_is_said_as_american_readers_say_it(text):
    assert spoken_form(text) == SAID[text]


@pytest.mark.parametrize(("text", "said"), {
    "105": "one hundred and five",
    "1,001": "one thousand and one",
    "2,345": "two thousand three hundred and forty five",
    "2005": "two thousand and five",
    "3/5/2024": "the third of May, twenty twenty four",
    "2024-03-05": "the fifth of March, twenty twenty four",
    "£3.20": "three pounds and twenty pence",
}.items())
def test_text_is_said_as_british_readers_say_it(text, said):
    assert spoken_form(text, british=True) == said


@pytest.mark.parametrize("text", ["7" * 4000, "1,000" * 800, "a/" * 2000, "a-" * 2000, "aB" * 2000, "a" * 4000,
                                  "$1" * 2000, "http://" + "a" * 4000, "1:" * 2000, "-1" * 2000])
def test_the_lexicon_never_sees_a_long_run(text):
    assert max(map(len, spoken_form(text).split())) <= parts.LONGEST_RUN


def test_every_digit_of_a_long_run_is_said():
    assert spoken_form("7" * 4000).split() == ["seven"] * 4000


def test_the_parts_cover_the_text():
    for text in SAID:
        folded = parts.fold(text)
        assert len(folded) == len(text)
        found = parts.parts(folded, RULES, False)
        assert [part.start for part in found] == [0, *(part.end for part in found[:-1])]
        assert found[-1].end == len(text)


def test_words_in_other_scripts_are_reported():
    assert unread("Привет world, 日本語 café π") == ["Привет", "日本語"]
    assert unread("[Tomato](/təmˈɑTO/), [日本](/nihˈɑn/), [a](/日/)") == ["日"]


def test_number_words_at_their_limits():
    assert cardinal(0) == "zero"
    assert cardinal(10**36 - 1).startswith("nine hundred ninety nine decillion")
    assert number("1," + "000," * 12 + "000").startswith("one zero zero")
    assert ordinal(40) == "fortieth" and ordinal(1_000_000) == "one millionth"
    assert [year(n) for n in (1900, 2100, 1001)] == ["nineteen hundred", "two thousand one hundred", "one thousand one"]
    assert [roman(text) for text in ("IV", "XIX", "XLIV", "XC", "LVIII")] == [4, 19, 44, 90, 58]
