"""What the library has to tell whoever runs it, and the one who does not listen."""

from collections.abc import Callable


class Notices:
    """Says nothing; the command line's console is one that does."""

    shows_progress = False

    def note(self, message: str) -> None:
        """What everybody should read."""

    def detail(self, message: str) -> None:
        """What is going on."""

    def warning(self, message: str) -> None:
        """What is not right, but goes on."""

    def preparation(self, label: str) -> Callable[[int, int, str], None] | None:
        """Called with (done, total, what) during work that is done once."""
