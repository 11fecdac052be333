"""How `nano` is trained: a small Qwen3-TTS model with a voice of our own. Nothing in `tts_cli` imports this."""
