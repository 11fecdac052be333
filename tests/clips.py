"""A speech-like signal given by a formula, so that every sample rate has its own exact copy of the same clip."""

import numpy as np

PEAK = 6.0  # a constant: the largest sample depends on the rate


def speech_like(rate: int, seconds: float = 1.6, *, pitch: float = 120.0) -> np.ndarray:
    """float32 [n]: gliding harmonics below 3.5 kHz with two moving formants, a syllable envelope, peak 0.5."""
    t = np.arange(round(rate * seconds)) / rate
    phase = 2 * np.pi * (pitch * t - 30 / (2 * np.pi * 0.7) * (np.cos(2 * np.pi * 0.7 * t) - 1))
    first = 550 + 200 * np.sin(2 * np.pi * 1.3 * t)
    second = 1700 + 500 * np.sin(2 * np.pi * 0.9 * t + 1)
    signal = np.zeros_like(t)
    for k in range(1, int(3450 / (pitch + 30)) + 1):
        f = k * pitch
        weight = np.exp(-((f - first) / 250) ** 2) + 0.5 * np.exp(-((f - second) / 350) ** 2) + 0.02
        signal += weight * np.sin(k * phase + 0.7 * k * k)
    envelope = (0.55 - 0.45 * np.cos(2 * np.pi * 4 * t)) * np.sin(np.pi * t / seconds) ** 0.5
    return (signal * envelope / PEAK).astype(np.float32)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
