"""The text tokenizer that lies in a talker's metadata: Qwen2 byte-level byte-pair encoding.

Ids come from the file's token list and merges, the machinery from the `tokenizers` package. Only ordinary tokens
can come out of `encode`: control tokens, codec rows and holes of the vocabulary are reached by name or number alone,
so typed `<|im_end|>` or `<|codec_5|>` are characters like any others.
"""

from gguf import TokenType
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from tts_cli.errors import ModelFileError, UsageError
from tts_cli.gguf.file import GGUFFile

# How Qwen2 cuts text before merging (tokenizer.json of every Qwen2 and Qwen3 model): contractions, words with one
# leading character, single digits, punctuation with trailing newlines, newlines, other white space.
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")


class Tokenizer:
    """Text to ids with one model's vocabulary.

    tokens    the text of every token by id: text vocabulary first, then the codec rows
    """

    def __init__(self, tokens: list[str], encoder: Encoder, where: str):
        self.tokens = tokens
        # The first of several equal names counts, as in llama.cpp.
        self._ids = {token: i for i, token in reversed(list(enumerate(tokens)))}
        self._encoder = encoder
        self._where = where

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "Tokenizer":
        """Build the tokenizer from `tokenizer.ggml.*`. Raises `ModelFileError` when it is another kind or damaged."""
        for key, known in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "qwen2")):
            kind = file.get(key, str)
            if kind != known:
                raise ModelFileError(f"{file.path}: {key} is {kind[:40]!r}, only {known!r} is supported; "
                                     "is this a Qwen3-TTS talker?")
        tokens = file.get("tokenizer.ggml.tokens", list[str])
        types = file.get("tokenizer.ggml.token_type", list[int])
        if len(types) != len(tokens):
            raise ModelFileError(f"{file.path}: there are {len(tokens)} tokens but {len(types)} token types")
        vocabulary: dict[str, int] = {}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True)):
            if kind == TokenType.NORMAL and vocabulary.setdefault(token, i) != i:
                raise ModelFileError(f"{file.path}: the tokens {vocabulary[token]} and {i} are both {token[:40]!r}")
        if missing := set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys():
            raise ModelFileError(f"{file.path}: {len(missing)} of the 256 byte symbols are not in the vocabulary, "
                                 f"among them {min(missing)!r}")
        merges = _checked_merges(file.get("tokenizer.ggml.merges", list[str]), vocabulary, str(file.path))
        encoder = Encoder(models.BPE(vocab=vocabulary, merges=merges))
        encoder.normalizer = normalizers.NFC()
        encoder.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        return cls(tokens, encoder, str(file.path))

    def encode(self, text: str) -> list[int]:
        """Ids of the text alone: nothing is added, nothing in it is special, white space counts.

        Raises `UsageError` for text that is not Unicode (half of a surrogate pair).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as e:
            raise UsageError(f"the text is not valid Unicode: half of a surrogate pair at character {e.start}; "
                             "give it as UTF-8") from None
        return self._encoder.encode(text, add_special_tokens=False).ids

    def find(self, token: str) -> int | None:
        """The id of the token with exactly this text, e.g. `<|codec_bos|>`; None when there is none."""
        return self._ids.get(token)

    def id(self, token: str) -> int:
        """Like `find`. Raises `ModelFileError` when the model does not have the token."""
        found = self.find(token)
        if found is None:
            raise ModelFileError(f"{self._where}: the required token {token!r} is missing from the vocabulary; "
                                 "is this a Qwen3-TTS talker?")
        return found

    def token(self, id: int) -> str:
        """The text of a token, in byte-level symbols for ordinary ones. Raises `IndexError`."""
        return self.tokens[id]


def _checked_merges(merges: list[str], vocabulary: dict[str, int], where: str) -> list[tuple[str, str]]:
    """Each merge as a pair of tokens that exist and whose sum exists."""
    pairs = []
    for i, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelFileError(f"{where}: merge {i} is {merge[:40]!r}, not two tokens of the vocabulary that make "
                                 "a third")
        pairs.append((left, right))
    return pairs
