"""Write a tiny random Qwen3-TTS pair, to try the program without downloading a model: it makes noise, not speech.

    python samples/make_tiny_pair.py models

The tests use the same two files; they are written by tests/factory.py.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from factory import tiny_pair  # noqa: E402 - found through the line above

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python samples/make_tiny_pair.py FOLDER")
    for path in tiny_pair(sys.argv[1]):
        print(path)
