"""Sentences to speak: the example sentences of WordNet, texts from files, and templates for what those lack."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

_SIMPLE = re.compile(r"[A-Za-z][A-Za-z ,.'?!;:-]*")
_SHORTEST, _LONGEST = 3, 100    # letters of a single sentence
_LONG = 200                     # letters of several sentences said as one
HELD_OUT = 50                   # one text in so many is never trained on

_NAMES = ("Anna", "Peter", "Maria", "John", "Sarah", "David", "Emma", "Thomas", "Julia", "Robert", "Helen", "Frank",
          "Doctor Miller", "Mister Brown", "Missis Green", "Professor Lee", "Aunt Rose", "Captain Hill")
_PLACES = ("London", "Paris", "the station", "the library", "New York", "the old bridge", "Berlin", "the market",
           "the harbour", "school", "the airport", "the garden", "Chicago", "the museum")
_THINGS = ("the window", "a cup of tea", "two tickets", "the report", "your coat", "the blue box", "a good book",
           "the next train", "some bread", "my umbrella", "the answer", "a new phone", "the keys", "dinner")
_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_TEMPLATES = (
    "{name} will meet you at {place} in {n} minutes.", "Have you seen {name} near {place}?",
    "It costs {n} dollars and {m} cents.", "Where did you put {thing}?", "Please bring {thing} to {place}.",
    "There are {n} chairs and {m} tables in {place}.", "{name}, could you pass me {thing}?", "Number {n}, please.",
    "The bus to {place} leaves at {hour} {m2}.", "Good morning, {name}!", "Good evening, {name}.", "Is this {thing}?",
    "Turn left after {place}, then walk {n} steps.", "Yes, {name}.", "No, not {thing}!", "{n} times {m} is a lot.",
    "I have called {name} {n} times today.", "Why is {name} waiting at {place}?", "Call me at {hour}.", "Thank you, "
    "{name}.", "Hello, {name}, how are you?", "What a day, {name}!", "We need {thing}, and quickly.",
    "On page {n} it says that {name} never saw {place}.")


def spoken_number(n: int) -> str:
    """0 .. 999 in words."""
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10 - 2] + (f" {_ONES[n % 10]}" if n % 10 else "")
    return f"{_ONES[n // 100]} hundred" + (f" and {spoken_number(n % 100)}" if n % 100 else "")


def sentences(wordnet: Path | None, files: list[Path], templates: int, seed: int = 0) -> list[str]:
    """Distinct sentences in a random but fixed order, one in ten joined with its neighbours to a long one.

    wordnet    folder of WordNet's data.noun, data.verb, …
    files      plain texts
    templates  how many sentences to make from templates

    Raises `FileNotFoundError` for a folder without WordNet's files.
    """
    rng = random.Random(seed)
    found: dict[str, str] = {}
    for text in (*(_wordnet(wordnet) if wordnet else ()), *(s for f in files for s in _split(f)),
                 *(_from_template(rng) for _ in range(templates))):
        if text := tidy(text):
            found.setdefault(re.sub(r"[^a-z ]", "", text.lower()), text)
    texts = list(found.values())
    rng.shuffle(texts)
    return list(_joined(texts, rng))


def tidy(text: str) -> str | None:
    """One sentence in plain letters, with a capital and a full stop; None for what is no such sentence."""
    text = re.sub(r"\s+", " ", text.replace("\u2019", "'").replace("--", ", ").replace("`", "'"))
    text = text.strip(" \"'()").rstrip(",;:- ")
    if not _SHORTEST <= len(text) <= _LONGEST or not _SIMPLE.fullmatch(text):
        return None
    if any(len(word) > 1 and word.isupper() for word in text.split()):
        return None
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def is_held_out(index: int) -> bool:
    """Whether the text of this number is kept for evaluation."""
    return index % HELD_OUT == 0


def _joined(texts: list[str], rng: random.Random) -> Iterator[str]:
    i = 0
    while i < len(texts):
        text, i = texts[i], i + 1
        if rng.random() < 0.1:
            while i < len(texts) and len(text) + len(texts[i]) < _LONG:
                text, i = f"{text} {texts[i]}", i + 1
        yield text


def _wordnet(folder: Path) -> Iterator[str]:
    """The examples in quotes that follow a definition."""
    paths = sorted(folder.glob("data.*"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no WordNet here (data.noun, …); Debian's package is wordnet-base")
    for path in paths:
        for line in path.read_text(encoding="latin1").splitlines():
            for example in re.findall(r'"([^"]+)"', line.partition("|")[2]):
                if len(example.split()) > 2:
                    yield example


def _split(path: Path) -> Iterator[str]:
    text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    yield from re.split(r"(?<=[.?!])\s+", text)


def _from_template(rng: random.Random) -> str:
    numbers = [spoken_number(rng.randrange(1, rng.choice((13, 100, 1000)))) for _ in range(2)]
    text = rng.choice(_TEMPLATES).format(
        name=rng.choice(_NAMES), place=rng.choice(_PLACES), thing=rng.choice(_THINGS), n=numbers[0], m=numbers[1],
        hour=spoken_number(rng.randrange(1, 13)), m2=rng.choice(("fifteen", "thirty", "forty five", "twenty")))
    return text[0].upper() + text[1:]
