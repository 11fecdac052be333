"""GGUF files: opened and checked, read lazily, and the tokenizer that lies in their metadata."""
