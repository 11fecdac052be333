"""Kokoro-82M: a StyleTTS 2 acoustic model with an iSTFTNet vocoder, 24 kHz (hexgrad; Li et al. 2023)."""
