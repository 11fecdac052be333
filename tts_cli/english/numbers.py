"""Numbers in English words, as they are said: spaces instead of hyphens, no commas."""

import re

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion", "sextillion", "septillion",
           "octillion", "nonillion", "decillion")
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
             "twelve": "twelfth"}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
LONGEST = 15  # digits read as one number; longer runs (cards, serial numbers) are read digit by digit


def cardinal(n: int, british: bool = False) -> str:
    """1234 → "one thousand two hundred thirty four"; British readers say "and thirty four". n < 10³⁶."""
    if n < 20:
        return _ONES[n]
    groups = []
    for scale in _SCALES:
        n, group = divmod(n, 1000)
        if group:
            groups.append((group, scale))
        if not n:
            break
    words: list[str] = []
    for group, scale in reversed(groups):
        hundreds, rest = divmod(group, 100)
        if hundreds:
            words += [_ONES[hundreds], "hundred"]
        if rest:
            if british and (hundreds or words and not scale):
                words.append("and")
            words += [_ONES[rest]] if rest < 20 else [_TENS[rest // 10]] + ([_ONES[rest % 10]] if rest % 10 else [])
        if scale:
            words.append(scale)
    return " ".join(words)


def ordinal(n: int, british: bool = False) -> str:
    """21 → "twenty first"."""
    head, _, last = cardinal(n, british).rpartition(" ")
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return f"{head} {last}".strip()


def digits(text: str) -> str:
    """Digit by digit, whatever stands between them."""
    return " ".join(_ONES[int(c)] for c in text if c.isdecimal())


def year(n: int, british: bool = False) -> str:
    """1905 → "nineteen oh five", 2024 → "twenty twenty four", 2005 → "two thousand five"."""
    century, rest = divmod(n, 100)
    if not 1010 <= n <= 2099 or 2000 <= n <= 2009:
        return cardinal(n, british)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def code(text: str) -> str:
    """Digits in a model name or an address: 57 → "fifty seven", 747 → "seven forty seven", 0042 → digits."""
    if len(text) > 3 or text[0] == "0":
        return digits(text)
    n = int(text)
    if n < 100 or n % 100 == 0:
        return cardinal(n)
    return f"{_ONES[n // 100]} {'oh ' if n % 100 < 10 else ''}{cardinal(n % 100)}"


def number(text: str, british: bool = False) -> str:
    """A written number with optional sign, thousands commas and decimals: "-1,000.5" → "minus one thousand point
    five"."""
    sign = "minus " if text.startswith("-") else ""
    whole, dot, decimals = text.lstrip("-+").partition(".")
    bare = whole.replace(",", "")
    if not bare:
        words = ""
    elif len(bare) > 36 or len(whole) > LONGEST and bare == whole or len(bare) > 1 and bare[0] == "0":
        words = digits(bare)
    else:
        words = cardinal(int(bare), british)
    return f"{sign}{words}{' point ' + digits(decimals) if dot and decimals else ''}".replace("  ", " ").strip()


def integer(text: str, british: bool = False) -> str:
    """A bare number in running text: four digits without a comma are read as years are, "1066", "1500 people"."""
    if re.fullmatch(r"1\d{3}|20\d\d", text):
        return year(int(text), british)
    return number(text, british)


def plural(words: str) -> str:
    """"ninety" → "nineties", "six" → "sixes"."""
    if words.endswith("y"):
        return words[:-1] + "ies"
    return words + ("es" if words.endswith(("x", "s")) else "s")


def roman(text: str) -> int:
    """The value of a well-formed Roman numeral."""
    values = [_ROMAN[c] for c in text]
    return sum(-v if v < after else v for v, after in zip(values, values[1:] + [0], strict=True))
