"""Clips in and speech out: reading any container to mono float32, writing speech to files and pipes."""


def shown(path) -> str:
    """A path as it stands in a one-line message: as is, or quoted when it holds characters that do not print."""
    text = str(path)
    return text if text.isprintable() else repr(text)
