"""What is wrong with a command line, in the words of the rest of the program instead of the parser's."""

import difflib
import itertools
import re
from pathlib import Path

_TEXT_AND_A_WORD = 'unexpected {word!r}: text goes after -p, in quotes: -p "{text}"; verbs are {verbs}'


def explain(error, arguments: list[str]) -> str:
    """One line for an error of the command-line parser: what was given, what is allowed, where the help is."""
    ctx = getattr(error, "ctx", None)
    command = "tts" if ctx is None else ctx.command_path
    return f"{_what(error, ctx, arguments)} ({command} --help tells more)"


def _what(error, ctx, arguments: list[str]) -> str:
    message = " ".join(error.format_message().split())
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _no_such_option(error.option_name, ctx)
    if message.startswith("No such command ") and ctx is not None:
        return _no_such_verb(ctx, arguments, message)
    if ctx is not None and (kind == "NoArgsIsHelpError" or message.startswith("Missing command")):
        return f"{ctx.command_path} needs a verb: {', '.join(ctx.command.commands)}"
    if kind == "MissingParameter" and error.param is not None:
        return f"{_called(error.param, with_value=True)} is missing"
    if message.endswith("requires an argument."):
        return f"{getattr(error, 'option_name', None) or message} needs a value behind it"
    if kind == "BadParameter" and error.param is not None:
        return _bad_value(error)
    return message.rstrip(".")


def _no_such_option(name: str, ctx) -> str:
    known = [] if ctx is None else [flag for parameter in ctx.command.get_params(ctx) for flag in parameter.opts]
    closest = difflib.get_close_matches(name, known, 1)
    return f"there is no option {name}" + (f"; did you mean {closest[0]}?" if closest else "")


def _no_such_verb(ctx, arguments: list[str], message: str) -> str:
    verbs = list(ctx.command.commands)
    place = next(i for i, word in enumerate(arguments) if word not in verbs and f" {word!r}" in message)
    word = arguments[place]
    closest = difflib.get_close_matches(word, verbs, 1, 0.75)
    if closest:
        return f"unexpected {word!r}: did you mean the verb {closest[0]}?"
    if ctx.parent is not None:
        return f"{ctx.command_path} has no verb {word!r}; there are {', '.join(verbs)}"
    if word == "help":
        return "tts --help shows the options and verbs, tts VERB --help those of a verb"
    if Path(word).is_file():
        return f"unexpected {word!r}: a file is spoken with -f {word}"
    words = itertools.takewhile(lambda word: not word.startswith("-"), arguments[place:])
    prompt = ctx.params.get("prompt")
    text = " ".join([*([prompt] if prompt else []), *words])
    return _TEXT_AND_A_WORD.format(word=word, text=text, verbs=", ".join(verbs))


def _bad_value(error) -> str:
    message = " ".join(str(error.message).split())
    given = _given(error, message)
    wanted = re.search(r"integer|float|number", message)
    if bound := re.search(r"(greater than or equal to |less than or equal to |x>=|x<=)(.*?)\.?$", message):
        size, end = ("small", "least") if bound[1][0] == "g" or ">" in bound[1] else ("large", "most")
        return f"{_called(error.param)}: {given} is too {size}, the {end} is {bound[2]}"
    if wanted and given is not None and "range" not in message:
        return f"{_called(error.param)}: {given!r} is not {'a whole number' if wanted[0] == 'integer' else 'a number'}"
    return f"{_called(error.param)}: {message[:1].lower()}{message[1:].rstrip('.')}"


def _given(error, message: str) -> str | None:
    """The refused value: pydantic keeps it, older parsers quote it."""
    if hasattr(error.__cause__, "errors"):
        return str(error.__cause__.errors()[0]["input"])
    quoted = re.match(r"'?(.*?)'? is not ", message)
    return quoted[1] if quoted else None


def _called(parameter, with_value: bool = False) -> str:
    """`--output`, or `--output FILE`; an argument by the name that stands in the help."""
    value = parameter.metavar or parameter.name.upper()
    if parameter.param_type_name == "argument":
        return value
    flag = max(parameter.opts, key=len)
    return f"{flag} {value}" if with_value and not parameter.is_flag else flag
