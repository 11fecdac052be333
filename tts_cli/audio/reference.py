"""What can be said of a reference clip and its transcript before a model hears them."""

import unicodedata

import numpy as np

# Spoken characters per second, from slow to hurried; scripts that write a syllable or word per character have fewer.
_ALPHABETIC, _SYLLABIC = (5.0, 25.0), (1.5, 9.0)
_QUIET = 0.05        # of the loudest window: what counts as a pause
_WINDOW = 0.02       # s
_SHORTEST_PAUSE = 5  # windows
_TAIL = 0.5          # s of silence left after the last whole word


def transcript_warning(text: str, seconds: float) -> str | None:
    """A line when nobody says `text` in `seconds`: the wrong transcript makes the model repeat or skip words."""
    letters = [c for c in text if unicodedata.category(c)[0] in "LN"]
    syllabic = sum("\u2e80" <= c <= "\ud7ff" for c in letters) * 2 > len(letters)
    low, high = _SYLLABIC if syllabic else _ALPHABETIC
    rate = len(letters) / seconds
    if low <= rate <= high:
        return None
    return (f"the transcript has {len(letters)} letters for {seconds:.1f} s of clip ({rate:.1f} a second, usual are "
            f"{low:g} to {high:g}): does it say just what the clip says?")


def trim_to_pause(clip: np.ndarray, sample_rate: int) -> np.ndarray:
    """Cut a clip after its last pause, so that it does not end inside a word, and let half a second of silence follow.

    clip float32 [n]. A clip without a pause in its second half is kept whole, with the silence after it.
    """
    size = int(_WINDOW * sample_rate)
    windows = clip[:len(clip) // size * size].reshape(-1, size)
    level = np.sqrt(np.square(windows).mean(1)) if len(windows) else np.zeros(0)
    quiet = level < _QUIET * level.max(initial=0.0)
    end = len(clip)
    run = 0
    for i in range(len(quiet) - 1, len(quiet) // 2, -1):
        run = run + 1 if quiet[i] else 0
        if run == _SHORTEST_PAUSE:
            end = i * size
            break
    return np.concatenate((clip[:end], np.zeros(int(_TAIL * sample_rate), np.float32)))
