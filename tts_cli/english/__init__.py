"""Written English in the words that are said for it, whoever speaks."""
