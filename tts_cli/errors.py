"""What can go wrong, as two kinds: the input was not usable, or the work failed.

A message says what was given, what is allowed, and what to do. The command line prints it as one line and exits
with `exit_code`; library users catch `TtsError`.
"""


class TtsError(Exception):
    """Base of every error this package raises on purpose. Runtime failures are raised as this class itself."""

    exit_code = 1


class UsageError(TtsError):
    """An option, text, reference clip, voice or path that cannot be used: nothing was generated."""

    exit_code = 2


class NothingToSpeak(UsageError):
    """A text of which the model leaves out everything: symbols, or a language that it does not read."""


class ModelFileError(TtsError):
    """A model file that is missing parts, damaged, of another kind, or does not fit its partner."""
