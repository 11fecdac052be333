"""`--help` as plain text: whole names, no types of Python, the groups in the order of the command's parameters."""

from types import MethodType

EXAMPLE = 'Example: tts -p "Good morning." -o morning.wav'
_HEADINGS = {"Options": "More"}


def with_plain_help(command):
    """The command and its verbs, with `--help` written by this module."""
    command.format_help = MethodType(_format_help, command)
    for verb in getattr(command, "commands", {}).values():
        with_plain_help(verb)
    return command


def _format_help(command, ctx, formatter) -> None:
    verbs = getattr(command, "commands", {})
    arguments = [name for parameter in command.params if (name := _argument_name(parameter))]
    formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *arguments, *(["VERB ..."] if verbs else [])]))
    for paragraph in (command.help or "").split("\n\n"):
        formatter.write_paragraph()
        formatter.write_text(" ".join(paragraph.split()))
    if ctx.parent is None:
        formatter.write_paragraph()
        formatter.write_text(EXAMPLE)
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        if not getattr(parameter, "hidden", False):
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            panel = "Arguments" if _argument_name(parameter) else panel
            groups.setdefault(panel, []).append((_names(parameter), _meaning(parameter)))
    # What every verb has, such as --help, comes last.
    for panel in sorted(groups, key=lambda panel: panel == "Options"):
        with formatter.section(_HEADINGS.get(panel, panel)):
            formatter.write_dl(groups[panel])
    if verbs:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, _first_sentence(verb.help)) for name, verb in verbs.items()])


def _argument_name(parameter) -> str | None:
    if parameter.param_type_name != "argument":
        return None
    return parameter.metavar or parameter.name.upper()


def _names(parameter) -> str:
    if (argument := _argument_name(parameter)) is not None:
        return argument
    flags = ", ".join(sorted(parameter.opts, key=lambda flag: flag.startswith("--")))
    if parameter.is_flag:
        return flags
    return f"{flags} {parameter.metavar or parameter.name.upper()}"


def _meaning(parameter) -> str:
    """The help with the default behind it, or that there is none and one is needed."""
    text = parameter.help or ""
    shown = parameter.show_default
    if parameter.required or shown == "(needed)":
        return f"{text} (needed)"
    if isinstance(shown, str) and shown not in ("none", "off"):
        return f"{text} [default: {shown}]"
    if shown is True and isinstance(parameter.default, (str, int, float)) and not isinstance(parameter.default, bool):
        return f"{text} [default: {parameter.default}]"
    return text


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())
