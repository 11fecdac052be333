"""The text side: a byte-level byte-pair vocabulary of our own, learned from the training texts."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from pathlib import Path

from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Encoder

from training.model import CONTROL_TOKENS, Nano
from tts_cli.gguf.tokenizer import QWEN2_SPLIT, Tokenizer
from tts_cli.qwen3tts.convert.vocab import Vocabulary, join_vocabulary

ASSISTANT = "assistant"  # the prompt has this word as one token


def learn_merges(texts: Iterable[str], tokens: int) -> list[str]:
    """Byte-pair merges "left right" of a vocabulary of `tokens`, 256 bytes and the word `assistant` included."""
    encoder = _encoder(models.BPE())
    # As the most frequent word by far it becomes one token, on a way that the other merges do not cut off.
    often = repeat(ASSISTANT, 100_000)
    encoder.train_from_iterator(chain(texts, often), trainers.BpeTrainer(
        vocab_size=tokens, initial_alphabet=_alphabet(), show_progress=False))
    return [m if isinstance(m, str) else " ".join(m) for m in json.loads(encoder.to_str())["model"]["merges"]]


def read_merges(path: Path) -> list[str]:
    """The merges "left right" of a file of training.data, one a line, in order. Raises `OSError`."""
    return path.read_text(encoding="utf-8").splitlines()


def vocabulary(nano: Nano, merges: Sequence[str]) -> Vocabulary:
    """The joined vocabulary of the talker's file. Raises `ModelFileError` when it does not fit the model."""
    first = nano.text_vocab - len(CONTROL_TOKENS)
    added = {first + i: (text, True) for i, text in enumerate(CONTROL_TOKENS)}
    return join_vocabulary(_table(merges), added, list(merges), nano.checkpoint_config())


class Reader(Tokenizer):
    """The tokenizer the exported file will have, which also tells where in the text each token lies."""

    def __init__(self, nano: Nano, merges: Sequence[str]):
        pairs = [tuple(merge.split(" ")) for merge in merges]
        super().__init__(vocabulary(nano, merges).tokens, _encoder(models.BPE(vocab=_table(merges), merges=pairs)),
                         "the training texts' vocabulary")

    def read(self, text: str) -> tuple[list[int], list[float]]:
        """Ids of the text, and the middle of each token in letters from the start."""
        found = self._encoder.encode(text, add_special_tokens=False)
        return found.ids, [(start + end) / 2 for start, end in found.offsets]


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _table(merges: Sequence[str]) -> dict[str, int]:
    table = {symbol: i for i, symbol in enumerate(_alphabet())}
    for merge in merges:
        table.setdefault(merge.replace(" ", ""), len(table))
    return table


def _encoder(model: models.BPE) -> Encoder:
    """Normalised and split as `tts_cli.gguf.tokenizer` does it."""
    encoder = Encoder(model)
    encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return encoder
