"""Readings of money, units, dates and times."""

import re
from unicodedata import normalize

from tts_cli.english.numbers import cardinal, number, ordinal, year
from tts_cli.english.parts import Rule

NUMBER = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}|\d+)(?:\.\d+)?"
START = r"(?<![\w.,])(?<!\d[-:/])"  # not inside a word or a number
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")
_MONTH = "|".join([*MONTHS, *(f"{m[:3]}\\.?" for m in MONTHS), r"Sept\.?"])
_SHORT_MONTHS = {m[:3]: m for m in MONTHS} | {"Sept": "September"}
_MAGNITUDES = {"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion", "t": "trillion",
               "tn": "trillion"}
_MAGNITUDE = r"(?:(?P<scale> (?:hundred|thousand|million|billion|trillion)\b|(?:k|K|m|M|mn|b|B|bn|T|tn)\b))?"

# sign or code: one, many, one hundredth, hundredths
_MONEY = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₽": ("rouble", "roubles", "kopek", "kopeks"),
    "₿": ("bitcoin", "bitcoins", "", ""),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "USD": ("U.S. dollar", "U.S. dollars", "cent", "cents"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
}
_MONEY |= {"US$": _MONEY["$"], "AUD": _MONEY["A$"], "CAD": _MONEY["C$"], "EUR": _MONEY["€"], "GBP": _MONEY["£"],
           "JPY": _MONEY["¥"], "INR": _MONEY["₹"]}
_SIGN = "|".join(re.escape(sign) for sign in sorted(_MONEY, key=len, reverse=True))

_UNITS = {
    "km": "kilometer", "cm": "centimeter", "mm": "millimeter", "nm": "nanometer", "µm": "micrometer", "m": "meter",
    "kg": "kilogram", "mg": "milligram", "µg": "microgram", "g": "gram", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "L": "liter", "l": "liter", "ml": "milliliter", "mL": "milliliter", "ft": "foot", "yd": "yard", "mi": "mile",
    "sq ft": "square foot", "km²": "square kilometer", "m²": "square meter", "cm²": "square centimeter",
    "m³": "cubic meter", "cm³": "cubic centimeter", "mph": "mile per hour",
    "km/h": "kilometer per hour", "kmh": "kilometer per hour", "kph": "kilometer per hour", "m/s": "meter per second",
    "fps": "frame per second", "rpm": "revolution per minute", "bpm": "beat per minute", "dpi": "dot per inch",
    "s": "second", "sec": "second", "secs": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond",
    "min": "minute", "mins": "minute", "h": "hour", "hr": "hour", "hrs": "hour", "yr": "year", "yrs": "year",
    "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "W": "watt", "kW": "kilowatt",
    "MW": "megawatt", "GW": "gigawatt", "kWh": "kilowatt hour", "V": "volt", "mV": "millivolt", "mA": "milliamp",
    "mAh": "milliamp hour", "kJ": "kilojoule", "kcal": "kilocalorie",
    "Pa": "pascal", "kPa": "kilopascal", "hPa": "hectopascal", "psi": "P S I", "dB": "decibel",
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "PB": "petabyte",
    "KiB": "kibibyte", "MiB": "mebibyte", "GiB": "gibibyte", "TiB": "tebibyte", "kbps": "kilobit per second",
    "Mbps": "megabit per second", "Gbps": "gigabit per second", "MB/s": "megabyte per second",
    "GB/s": "gigabyte per second", "px": "pixel", "MP": "megapixel", "hp": "horsepower", "%": "percent",
    "‰": "per mille", "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree", "bp": "basis point",
}
# Units that are one character, "㎞" and "℃".
_UNITS |= {c: _UNITS[plain] for c in map(chr, (*range(0x2100, 0x2150), *range(0x3371, 0x33E0)))
           if (plain := re.sub("[23]$", lambda power: "²³"[int(power[0]) - 2], normalize("NFKC", c))) in _UNITS}
_SPACED_ONLY = {"s", "h"}  # "5s" is more likely a plural or a name
_UNCHANGED = {"hertz", "horsepower", "percent", "P S I", "per mille"}
_UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))


def _many(unit: str) -> str:
    if unit in _UNCHANGED or unit.endswith("hertz"):
        return unit
    head, _, rest = unit.partition(" per ")
    first, _, last = head.rpartition(" ")
    if first in ("degree", "kilowatt", "milliamp") and last != "hour":
        head = f"{first}s {last}"
    elif last == "foot":
        head = head[:-4] + "feet"
    else:
        head += "s"
    return f"{head} per {rest}" if rest else head


def unit_name(sign: str) -> str:
    """What a unit is called without a number; "" for what is none."""
    return _many(_UNITS[sign]) if sign in _UNITS else ""


def _unit(match: re.Match, british: bool) -> str | None:
    amount, space, unit = match["amount"], match["space"], match["unit"]
    if unit in _SPACED_ONLY and not space:
        return None
    unit = unit.replace("μ", "µ")
    name = _UNITS[unit]
    return f"{number(amount, british)} {name if amount in ('1', '-1') or space == '-' else _many(name)}"


def _money(match: re.Match, british: bool) -> str:
    one, many, cent, cents = _MONEY[match["sign"]]
    amount = match["amount"]
    minus = "minus " if match["minus"] or match.groupdict().get("inside") else ""
    scale = (match["scale"] or "").strip()
    if scale:
        return f"{minus}{number(amount, british)} {_MAGNITUDES.get(scale.lower(), scale)} {many}"
    whole, _, decimals = amount.partition(".")
    if len(decimals) != 2 or not cent:
        return f"{minus}{number(amount, british)} {one if amount == '1' else many}"
    small = f"{cardinal(int(decimals))} {cent if decimals == '01' else cents}"
    large = f"{number(whole, british)} {one if whole == '1' else many}"
    if decimals == "00":
        return minus + large
    return minus + (small if whole == "0" else f"{large} and {small}")


def _price_range(match: re.Match, british: bool) -> str:
    return f"{number(match['low'], british)} to {number(match['high'], british)} {_MONEY[match['sign']][1]}"


def _day(day: str, month: str, british: bool) -> str:
    if british:
        return f"the {ordinal(int(day))} of {month}"
    return f"{month} {ordinal(int(day))}"


def _date(year_text: str, month: int, day: int, british: bool) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    n = int(year_text)
    if len(year_text) == 2:
        n += 1900 if n >= 70 else 2000
    return f"{_day(str(day), MONTHS[month - 1], british)}, {year(n, british)}"


def _slashed(match: re.Match, british: bool) -> str | None:
    first, second = int(match[1]), int(match[3])
    day_first = first > 12 or (second <= 12 and (british or match[2] == "."))
    month, day = (second, first) if day_first else (first, second)
    return _date(match[4], month, day, british)


def _month_day(match: re.Match, british: bool) -> str | None:
    day = int(match["day"])
    return ordinal(day) if 1 <= day <= 31 else None


def _day_month(match: re.Match, british: bool) -> str | None:
    day = int(match["say"])
    if not 1 <= day <= 31:
        return None
    return ordinal(day) + " of" if match["the"] else f"the {ordinal(day)} of"


def _time(match: re.Match, british: bool) -> str | None:
    hour, minute, second, half = int(match[1]), int(match[2]), match[3], match["half"]
    if hour > 24 or minute > 59:
        return None
    words = cardinal(hour)
    if minute:
        words += f" {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    elif not half and not second:
        words += " o'clock" if 1 <= hour <= 12 else " hundred"
    if second:
        words += f" and {cardinal(int(second))} second{'' if int(second) == 1 else 's'}"
    return words + _half_day(half)


def _half_day(half: str | None) -> str:
    return f" {half[0].upper()}.M " if half else ""  # without the last dot, which would hide the end of a sentence


def _hour(match: re.Match, british: bool) -> str | None:
    hour = int(match[1])
    return cardinal(hour) + _half_day(match["half"]) if 1 <= hour <= 12 else None


def _feet(match: re.Match, british: bool) -> str:
    inches = f" {number(match[2])}" if match[2] else ""
    return f"{number(match[1])} {'foot' if inches or match[1] == '1' else 'feet'}{inches}"


def _rule(pattern: str, say) -> Rule:
    return Rule(re.compile(pattern), say)


# a.m. and p.m.: the last dot is theirs unless it ends the sentence
_HALF = r"(?P<half>[AaPp](?:[Mm]\b|\.[Mm]\b(?:\.(?! *(?:[A-Z\"”]|\n|$)))?))"

_SLASH_PER = r"(?<=\d)(?: ?/ ?)(?=(?:day|week|month|year|hour|minute|second|person|night|kg|mo|yr|hr)\b)"

RULES = (
    _rule(r"(?<![\d/-])(\d{4})([/-])(\d{2})\2(\d{2})(?![\d/-])T?",
          lambda m, gb: _date(m[1], int(m[3]), int(m[4]), gb)),
    _rule(r"(?<![\w/.])(\d{1,2})([/.])(\d{1,2})\2(\d{4}|\d\d)(?![\w/]|\.\d)", _slashed),
    _rule(rf"(?<!\w)(?:{_MONTH})\s(?P<say>(?P<day>\d{{1,2}}))(?![\w:%]|[.,/-]\d)", _month_day),
    _rule(rf"{START}(?P<the>\b[Tt]he )?(?P<say>\d{{1,2}})(?= (?:{_MONTH})\b)", _day_month),
    _rule(r"(?<!\w)(?P<say>(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\.?)(?= \d)",
          lambda m, gb: _SHORT_MONTHS[m[0].rstrip(".")]),
    _rule(rf"(?<![\w:.])(?<!\d,)(\d{{1,2}}):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?(?![\w:])(?: ?{_HALF})?", _time),
    _rule(rf"(?<![\w:.])(\d{{1,2}}):([0-5]\d)(){_HALF}", _time),
    _rule(rf"{START}(\d{{1,2}}) ?{_HALF}", _hour),
    _rule(rf"(?<!\w)(?P<sign>{_SIGN})(?P<low>{NUMBER})[-–](?P<high>{NUMBER})(?![\w-])", _price_range),
    _rule(rf"(?<![\w.])(?P<minus>(?<!\d)-)?(?P<sign>{_SIGN}) ?(?P<inside>-)?(?P<amount>{NUMBER}){_MAGNITUDE}"
          r"(?![.,]?\d)", _money),
    _rule(rf"{START}(?P<minus>-)?(?P<amount>{NUMBER}){_MAGNITUDE} ?(?P<sign>{_SIGN})(?!\w)", _money),
    _rule(rf"{START}(?P<amount>{NUMBER}) ?¢",
          lambda m, gb: f"{number(m['amount'], gb)} cent{'s' * (m['amount'] != '1')}"),
    _rule(_SLASH_PER, lambda m, gb: " per "),
    _rule(r"(?<![\w.])(\d+)'(?:(\d{1,2})(?:\"|'')?)?(?![\w'])", _feet),
    _rule(rf"(?<![\w.,])(?<!\d[:/])(?P<amount>(?<!\d)-{NUMBER}|{NUMBER})(?P<space>[\s-]?)(?P<unit>{_UNIT})"
          r"(?![\w²³°/$£€])", _unit),
)
