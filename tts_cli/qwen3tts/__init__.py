"""Qwen3-TTS (12 Hz family): prompt, talker, code predictor, code2wav, speaker encoder and the loop that joins them."""
