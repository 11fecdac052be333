"""The API's description as a page that needs nothing else: neither scripts nor another host."""

from collections.abc import Iterator
from html import escape

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: the API</title>
<style>
  :root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
  body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
  table {{ border-collapse: collapse; width: 100%; }}
  td, th {{ border-top: 1px solid #8886; padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top; }}
  code {{ font-family: ui-monospace, monospace; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{title} {version}</h1>
<p>{description} The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>
"""
_BOUNDS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "minLength": "at least {} long",
           "maxLength": "at most {} long", "default": "default {}"}


def page(schema: dict) -> str:
    """HTML of an OpenAPI description: routes, then the models that they and the WebSocket name."""
    parts = [_HEAD.format_map({name: escape(text) for name, text in schema["info"].items()})]
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(route.get('description', ''))}</p>")
            if bodies := _bodies(route):
                parts.append(f"<p>Body: {bodies}.</p>")
            answers = ", ".join(f"{code} {escape(answer['description'])}"
                                for code, answer in route["responses"].items())
            parts.append(f"<p>Answers: {answers}.</p>")
    for name, model in sorted(schema["components"]["schemas"].items()):
        parts.append(f'<h2 id="{escape(name)}">{escape(name)}</h2>')
        parts.append(f"<p>{escape(model.get('description', ''))}</p>")
        parts.append("<table><tr><th>Field<th>Values<th>Meaning")
        parts.extend(_rows(model))
        parts.append("</table>")
    return "\n".join([*parts, "</body>", "</html>", ""])


def _bodies(route: dict) -> str:
    """Media types of a route's body, and links to what is in them."""
    content = route.get("requestBody", {}).get("content", {})
    return "; ".join(f"{escape(kind)} ({_values(body['schema'])})" for kind, body in content.items())


def _rows(model: dict) -> Iterator[str]:
    needed = model.get("required", ())
    for name, field in model.get("properties", {}).items():
        star = " (needed)" if name in needed else ""
        yield (f"<tr><td><code>{escape(name)}</code>{star}<td>{_values(field)}"
               f"<td>{escape(field.get('description', ''))}")


def _values(field: dict) -> str:
    """What a field takes, in HTML."""
    if "$ref" in field:
        name = escape(field["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for several in ("anyOf", "allOf"):
        if several in field:
            kinds = (" or " if several == "anyOf" else " and ").join(map(_values, field[several]))
            return ", ".join([kinds, *_bounds(field)])
    if "enum" in field or "const" in field:
        words = field.get("enum", [field.get("const")])
        return ", ".join([*(f"<code>{escape(str(word))}</code>" for word in words), *_bounds(field)])
    kind = f"array of {_values(field['items'])}" if "items" in field else escape(str(field.get("type", "object")))
    if fields := ", ".join(f"<code>{escape(name)}</code>" for name in field.get("properties", ())):
        kind += f" with {fields}"
    return ", ".join([kind, *_bounds(field)])


def _bounds(field: dict) -> Iterator[str]:
    for key, words in _BOUNDS.items():
        if field.get(key) is not None:
            yield escape(words.format(field[key]))
