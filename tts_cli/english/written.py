"""Readings of what is written but not said as written: addresses, phone numbers, codes, abbreviations, symbols."""

import re
import unicodedata

from tts_cli.english.measures import MONTHS, NUMBER, unit_name
from tts_cli.english.numbers import LONGEST, cardinal, code, digits, integer, number, ordinal, plural, roman, year
from tts_cli.english.parts import Rule

_LETTER = r"[^\W\d_]"
_TOP_LEVEL = "com|org|net|edu|gov|mil|int|info|biz|io|ai|dev|app|co|me|tv|uk|us|ca|de|fr|it|es|nl|ch|at|au|nz|jp|cn|eu"
_IN_ADDRESS = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon", "?": "question mark",
               "=": "equals", "&": "and", "#": "hash", "%": "percent", "+": "plus", "~": "tilde"}
_SPELLED = re.compile(r"[b-df-hj-np-tv-xz]{2,4}|\w", re.I)  # a label without a vowel: "www", "fr", "a"

_SYMBOLS = {
    "&": "and", "@": "at", "+": "plus", "=": "equals", "%": "percent", "<": "less than", ">": "greater than",
    "/": "slash", "\\": "backslash", "#": "hash", "×": "times", "÷": "divided by", "±": "plus or minus", "≈": "about",
    "≤": "less than or equal to", "≥": "greater than or equal to", "≠": "does not equal", "√": "square root of",
    "∞": "infinity", "°": "degrees", "©": "copyright", "®": "registered", "™": "trademark", "§": "section",
    "¶": "paragraph", "$": "dollars", "£": "pounds", "€": "euros", "¥": "yen", "₹": "rupees", "₿": "bitcoin",
    "¢": "cents", "²": "squared", "³": "cubed", "µ": "micro", "∑": "sum", "∆": "delta", "Ω": "ohm",
}
_PUNCTUATION = {"[": "(", "{": "(", "]": ")", "}": ")", "–": "—", "―": "—", "‥": "…", "·": ",", "•": ",", "¿": "",
                "¡": "", "。": ".", "，": ",", "、": ",", "！": "!", "？": "?", "；": ";", "：": ":", "〜": "—"}

_TITLES = {  # before a name
    "Ms.": "Miz", "Prof.": "Professor", "Gen.": "General", "Gov.": "Governor", "Sen.": "Senator",
    "Rep.": "Representative", "Capt.": "Captain", "Lt.": "Lieutenant", "Col.": "Colonel", "Sgt.": "Sergeant",
    "Rev.": "Reverend", "Hon.": "Honorable", "Mt.": "Mount", "Ft.": "Fort", "v.": "versus",
}
_NUMBERED_THINGS = {  # before a number
    "p.": "page", "pp.": "pages", "vol.": "volume", "Vol.": "Volume", "Fig.": "Figure", "fig.": "figure",
    "Ch.": "Chapter", "ch.": "chapter", "Nos.": "Numbers",
}
_LAST_WORDS = {  # their dot can be the end of the sentence
    "Jr.": "Junior", "Sr.": "Senior", "Inc.": "Incorporated", "Ltd.": "Limited", "Corp.": "Corporation",
    "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "Hwy.": "Highway", "a.k.a.": "also known as",
    "et al.": "and others",
}
_DAYS = {day[:3]: day for day in ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")}
_ABBREVIATIONS = _TITLES | _NUMBERED_THINGS | _LAST_WORDS | {
    "Co.": "Company", "Apt.": "Apartment", "Bldg.": "Building", "Bros.": "Brothers", "Dept.": "Department",
    "Univ.": "University", "Govt.": "Government", "approx.": "approximately", "vs.": "versus", "vs": "versus",
    "cf.": "compare", "e.g.": "for example", "i.e.": "that is", "w/o": "without", "w/": "with",
    "aka": "also known as", "n/a": "not applicable", "N/A": "not applicable", "C++": "C plus plus",
    "C#": "C sharp", "F#": "F sharp", ".NET": "dot net", "24/7": "twenty four seven", "9/11": "nine eleven",
    "50/50": "fifty fifty", "'n'": "and", "'em": "them", "'cause": "because",
} | {f"{month[:3]}.": month for month in MONTHS if month != "May"} | {"Sept.": "September"} | {
    f"{short}.": _DAYS[short[:3]] for short in ("Mon", "Tue", "Tues", "Wed", "Thu", "Thurs", "Fri", "Sat")}
_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)\.?"

_SENTENCE_STARTS = frozenset((
    "A", "And", "At", "But", "He", "I", "If", "In", "It", "My", "On", "Our", "She", "So", "That", "The", "Then",
    "There", "They", "This", "We", "When", "You"))

_NUMBERED = ("Chapter|Part|Volume|Book|Act|Scene|Section|Article|Title|Phase|Stage|Type|Class|Level|Tier|Appendix|War|"
             "Bowl|Episode|Season|Rocky|Mark|Grade|Figure|Table|Apollo|Fantasy|Schedule|Lesson|Unit|Canto|Symphony")
_RULERS = ("Henry|Louis|Charles|George|Edward|Richard|William|James|Elizabeth|Pius|Paul|Benedict|Leo|Philip|Napoleon|"
           "Nicholas|Alexander|Peter|Catherine|Frederick|Wilhelm|Ivan|Mary|Innocent|Gregory|Urban|Clement|Ferdinand|"
           "Ramses|Ramesses|Thutmose|Xerxes|Darius|Ptolemy|Margaret|Christian|Gustav|Carl|Leopold|Albert|Victor|Sixtus")
_ROMAN = r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_NOT_THE_PRONOUN = r"(?!I\b(?! ?(?:[,.;:!?)]|of\b|was\b|is\b|and\b|$)))(?![CL]\b)"
_DENOMINATORS = {2: "half", 4: "quarter"}


def _label(text: str) -> str:
    """A stretch of letters in an address: a word, or its letters where it cannot be one."""
    return " ".join(text.upper()) if _SPELLED.fullmatch(text) else text


def _address(match: re.Match, british: bool) -> str:
    text = re.sub(r"^(?:https?|ftp)://(?:www\.)?|^www\.|^mailto:", "", match[0], flags=re.I).rstrip("/")
    words = []
    for piece in re.findall(rf"{_LETTER}+|\d+|[^\w\s]|_", text):
        if piece.isdecimal():
            words.append(code(piece))
        elif piece[0].isalpha():
            words.append(_label(piece))
        elif piece in _IN_ADDRESS:
            words.append(_IN_ADDRESS[piece])
    return " ".join(words)


def _abbreviation(match: re.Match, british: bool) -> str | None:
    short, rest = match[0], match.string[match.end():match.end() + 2].lstrip(" ")
    if short in _NUMBERED_THINGS and not rest[:1].isdigit() or short in _TITLES and not rest[:1].isupper():
        return None
    dot = short.endswith(".") and (not rest or rest[0] in "\n\"”)" or short in _LAST_WORDS and rest[0].isupper())
    return _ABBREVIATIONS[short] + "." * dot


def _street_or_saint(match: re.Match, british: bool) -> str:
    name = (match["name"] or "").strip()
    if name and name not in _SENTENCE_STARTS:
        return f"Saint {name}"
    if not name:
        return "Street" + "." * (not match.string[match.end():].strip())
    return f"Street. {name}"


def _day(match: re.Match, british: bool) -> str:
    return _DAYS[match["say"][:3]] + "." * (match["say"].endswith(".") and not match.string[match.end():].strip())


def _fraction(match: re.Match, british: bool) -> str:
    whole, top, bottom = match["whole"], int(match["top"]), int(match["bottom"])
    if not bottom or top >= bottom or bottom > 100:
        words = f"{cardinal(top, british)} {'out of' if 0 < top == bottom else 'over'} {cardinal(bottom, british)}"
    else:
        one = _DENOMINATORS.get(bottom) or ordinal(bottom)
        many = "halves" if bottom == 2 else one + "s"
        words = f"{cardinal(top)} {one if top == 1 else many}"
    if whole and words.startswith("one "):
        words = f"a{words[3:]}"
    return f"{number(whole, british)} and {words}" if whole else words


def _vulgar(match: re.Match, british: bool) -> str | None:
    top, slash, bottom = unicodedata.normalize("NFKC", match[2]).partition("\u2044")
    if not slash or not bottom:
        return None
    both = re.fullmatch(r"(?P<whole>\d*) (?P<top>\d+)/(?P<bottom>\d+)", f"{match[1] or ''} {top}/{bottom}")
    return _fraction(both, british)


def _power(match: re.Match, british: bool) -> str:
    return f" times ten to the {number(match[1], british)}"


def _groups(match: re.Match, british: bool) -> str:
    """A phone or serial number: digit by digit, a breath between groups."""
    return ", ".join(digits(group) for group in re.findall(r"\d+", match[0]))


def _dotted(match: re.Match, british: bool) -> str:
    groups = match[0].split(".")
    if len(groups) == 4 or any(len(group) > 3 for group in groups):
        return " dot ".join(code(group) for group in groups)
    return " point ".join(code(group) for group in groups)


def _version(match: re.Match, british: bool) -> str:
    return "version " + " point ".join(code(group) for group in match[1].split("."))


def _decade(match: re.Match, british: bool) -> str | None:
    text = match[1]
    return plural(year(int(text), british) if len(text) == 4 else cardinal(int(text))).removeprefix("one ")


def _in_word(match: re.Match, british: bool) -> str:
    """A number after letters: "GPT-4", "MP3s", but a year in "pre-2000"."""
    whole, dot, decimals = match["number"].partition(".")
    words = integer(whole, british) if match[0].startswith("-") and len(whole) == 4 else code(whole)
    words += f" point {digits(decimals)}" if dot else ""
    return plural(words) if match["many"] else words


def _symbol(match: re.Match, british: bool) -> str:
    c = match[0]
    if c in _SYMBOLS:
        return f" {_SYMBOLS[c]} "
    if name := unit_name(c):
        return f" {name} "
    name = unicodedata.name(c, "")
    if name.startswith("GREEK ") and " LETTER " in name:
        return f" {name.split(' LETTER ')[1].split(' WITH')[0].split()[-1].lower()} "
    return " " if unicodedata.category(c)[0] == "S" and not c.isalnum() else ""


def _superscript(match: re.Match, british: bool) -> str:
    return f" to the power of {number(unicodedata.normalize('NFKC', match[0]), british)}"


def _other_number(match: re.Match, british: bool) -> str | None:
    """Circled and lowered digits, Roman numeral characters; letters are left alone."""
    if match[0].isalpha():
        return None
    value = unicodedata.numeric(match[0], -1.0)
    return cardinal(int(value), british) if value >= 0 and value == int(value) else ""


def _rule(pattern: str, say, flags: int = 0) -> Rule:
    return Rule(re.compile(pattern, flags), say)


def _fixed(words: str):
    return lambda match, british: words


_PHONE = "|".join((
    r"(?:\+?\d{1,3}[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}", r"\d{3}-\d{4}",  # North America
    r"\+\d{1,3}(?:[ -]\d{2,4}){2,5}",  # international
    r"\d{3}-\d{2}-\d{4}", r"[3-6]\d{3}(?:[ -]\d{4}){3}", r"\d{1,5}(?:-\d{1,7}){3,6}"))  # social security, card, ISBN
_PATH = r"[^\s<>\"()]"

# Before the readings of measures.py ...
FIRST = (
    _rule(r"\w*[\ufb00-\ufb06]\w*", lambda m, gb: unicodedata.normalize("NFKC", m[0])),  # ligatures
    _rule(rf"(?<!\w)(?:(?:https?|ftp)://|www\.){_PATH}{{1,2000}}[\w/]", _address, re.I),
    _rule(r"(?<![\w.+-])(?:mailto:)?[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}", _address),
    _rule(rf"(?<![\w.@-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:{_TOP_LEVEL})\b(?:/{_PATH}{{0,2000}}[\w/])?(?![\w@]|\.\w)",
          lambda m, gb: _address(m, gb) if re.search("[A-Za-z]{2}", m[0].rpartition(".")[0]) else None),
    _rule(rf"\d{{{LONGEST + 1},}}", lambda m, gb: digits(m[0])),
    _rule(rf"\b(?P<say>{_DAY})(?= ?[-–] ?{_DAY}(?!\w))", _day),
    _rule(rf"\b{_DAY}(?P<say> ?[-–] ?)(?={_DAY}(?!\w))", _fixed(" to ")),
    _rule(rf"(?:(?<=[-–])|(?<=[-–] ))(?P<say>{_DAY})(?!\w)", _day),
    _rule(rf"(?<![\w.])(?:{'|'.join(re.escape(a) for a in sorted(_ABBREVIATIONS, key=len, reverse=True))})(?!\w)",
          _abbreviation),
    _rule(r"(?<![\w.-])\d+[A-Za-z]? (?:[NSEW]\.? )?(?:[A-Z]\w+ ){1,3}(?P<say>St\.)(?= [A-Z])", _fixed("Street.")),
    _rule(r"(?<![\w.])St\.(?P<name> ?[A-Z]\w*)?", _street_or_saint),
    _rule(r"№ ?|(?<!\w)(?:No\. ?|#)(?=\d)", _fixed("number ")),
    _rule(r"(?<![\w&])#(?=[^\W\d])", _fixed("hashtag ")),
    _rule(rf"\b(?:{_NUMBERED}) (?P<say>{_ROMAN})(?!['\w])", lambda m, gb: cardinal(roman(m["say"]))),
    _rule(rf"\b(?:{_RULERS}) (?P<say>{_NOT_THE_PRONOUN}{_ROMAN})(?!['\w])",
          lambda m, gb: f"the {ordinal(roman(m['say']))}"),
    _rule(rf"(?<![\w.-])(?:{_PHONE})(?![\w-])", _groups),
    _rule(r"(?<!\w)[vV](?:er)?\.? ?(\d{1,4}(?:\.\d{1,4}){0,4})(?!\w|\.\d)", _version),
)

# ... and after them; single symbols come last.
LAST = (
    _rule(r"(?<![\w.])\d{1,3}(?:\.\d{3}){2,5}(?!\w|\.\d)", lambda m, gb: number(m[0].replace(".", ""), gb)),
    _rule(r"(?<![\w.])\d{1,6}(?:\.\d{1,6}){2,5}(?!\w|\.\d)", _dotted),
    _rule(r"(?<!\w)'?((?:1\d|20)\d0|[2-9]0)'?s\b", _decade),
    _rule(r"(?<![\w.,])(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th|ST|ND|RD|TH)\b",
          lambda m, gb: ordinal(int(m[1].replace(",", "")), gb) if len(m[1]) < 36 else None),
    _rule(r"(?<![\w.])(?:([1-9]\d{0,3})\s?)?([¼½¾⅐-⅞])", _vulgar),
    _rule(r"(?<![\w./,])(?:(?P<whole>\d{1,4}) )?(?P<top>\d{1,4})/(?P<bottom>\d{1,4})(?![\w/]|\.\d)", _fraction),
    _rule(r"(?<=\d)(?: ?– ?|-)(?=[$£€]?\d)", _fixed(" to ")),
    _rule(r"(?<=\d):(?=\d)|(?:(?<=[AaPp][Mm])|(?<=[AaPp]\.[Mm]\.)) ?[-–] ?(?=\d)", _fixed(" to ")),
    _rule(r"(?<=\d)[xX*×](?=\d)|(?<=\d) [xX*×] (?=\d)", _fixed(" times ")),
    _rule(r"(?<=\d)[eE]([+-]?\d{1,3})\b", _power),
    _rule(r"(?<=[\d)])\^(?=-?[\d(])", _fixed(" to the power of ")),
    _rule(r"(?<=[\d)]) - (?=[\d(])", _fixed(" minus ")),
    _rule(r"(?<![\w.)\]-])-(?=\.?\d)", _fixed("minus ")),
    _rule(r"(?<!\w)~ ?(?=[\d$£€])", _fixed("about ")),
    _rule(rf"(?<={_LETTER})-?(?P<say>(?P<number>\d{{1,15}}(?:\.\d{{1,15}})?)(?P<many>'?s\b)?)", _in_word),
    _rule(r"(?<![\w.,])(\d{2,15})'?s\b", lambda m, gb: plural(code(m[1])).removeprefix("one ")),
    _rule(rf"(?<![\w,]){NUMBER}(?![.,]?\d)|(?<!\w)\.\d+|{NUMBER}", lambda m, gb: integer(m[0], gb)),
    _rule(r"(?<=\w\w)\.(?=[a-z]{1,5}\b)", _fixed(" dot ")),
    _rule(r"(?m:^[ \t]*(?:[-*•·>]|#{1,6})(?=\s))", _fixed("")),  # list and heading marks
    _rule(r"\.{2,}|…+\.*", _fixed("…")),
    _rule(r"([!?,;:])[!?,;:]+", lambda m, gb: "?" if "?" in m[0] else m[1]),
    _rule(r"--+|(?<=\s)-(?=\s)|—+", _fixed("—")),
    _rule(rf"(?<!{_LETTER})-+|-+(?!{_LETTER})", _fixed(" ")),
    _rule(rf"(?<!{_LETTER})'+|'+(?!{_LETTER})", _fixed("")),
    _rule(r"(?<=\w)[(\[{](?=\w)", _fixed(" (")),
    _rule(r"[)\]}](?=\w)", _fixed(") ")),
    _rule(r"[\[{}\]–―‥·•¿¡。，、！？；：〜]", lambda m, gb: _PUNCTUATION[m[0]]),
    _rule(r"[*`|_^~]+", _fixed(" ")),
    _rule(r"(?<=\w)[⁰¹²³⁴-⁹]{2,15}|(?<=\w)[⁰¹⁴-⁹]", _superscript),
    _rule(r"[^\W\u0000-\u007f²³]", _other_number),
    _rule(r"[^\w\s.,;:!?()…—'\"“”-]|[\u0370-\u03ff\u1f00-\u1fff²³µ]", _symbol),
    _rule(r"[^\x00-\u024f\u1e00-\u1eff…—“”]+", _fixed("")),  # letters of other scripts
)
