"""The joined vocabulary of the GGUF talker: text tokens of the checkpoint's tokenizer, then the named codec rows."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf import TokenType

from tts_cli.errors import ModelFileError
from tts_cli.qwen3tts.convert.config import ModelConfig, Section

REQUIRED = ("<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")


@dataclass(frozen=True)
class Vocabulary:
    """`tokenizer.ggml.{tokens,token_type,merges}`; a merge is its two parts with a space between."""

    tokens: list[str] = field(repr=False)
    types: list[int] = field(repr=False)
    merges: list[str] = field(repr=False)


def read_vocabulary(folder: Path, config: ModelConfig) -> Vocabulary:
    """From vocab.json, merges.txt and tokenizer_config.json, or from tokenizer.json. Raises `ModelFileError`."""
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        vocab, merges = Section.read(folder / "vocab.json").values, _read_merges(folder / "merges.txt")
    elif (folder / "tokenizer.json").is_file():
        model = Section.read(folder / "tokenizer.json").section("model")
        vocab = model.section("vocab").values
        merges = [m if isinstance(m, str) else " ".join(m) for m in model.values.get("merges") or []]
    else:
        raise ModelFileError(f"{folder}: no tokenizer found (vocab.json with merges.txt, or tokenizer.json)")
    return join_vocabulary(vocab, _added_tokens(folder), merges, config)


def join_vocabulary(vocab: dict[str, int], added: dict[int, tuple[str, bool]], merges: list[str],
                    config: ModelConfig) -> Vocabulary:
    """`vocab` is the BPE model's table, `added` maps id to (text, special). Raises `ModelFileError`."""
    size = config.dims.text_vocab
    tokens: list[str | None] = [None] * size
    types = [int(TokenType.UNUSED)] * size
    plain = ((i, text, TokenType.NORMAL) for text, i in vocab.items())
    extra = ((i, text, TokenType.CONTROL if special or _looks_special(text) else TokenType.USER_DEFINED)
             for i, (text, special) in added.items())
    for i, text, kind in (*plain, *extra):
        if not isinstance(i, int) or not 0 <= i < size:
            raise ModelFileError(f"tokenizer: token {text!r} has id {i!r}, outside the {size} rows of text_vocab_size")
        if tokens[i] not in (None, text):
            raise ModelFileError(f"tokenizer: {text!r} and {tokens[i]!r} share the id {i}")
        tokens[i], types[i] = text, int(kind)
    present = set(tokens)
    if missing := [text for text in REQUIRED if text not in present]:
        raise ModelFileError(f"tokenizer: missing required token {', '.join(missing)}")
    for merge in merges:
        parts = merge.split(" ")
        if len(parts) != 2 or not all(parts):
            raise ModelFileError(f"tokenizer: merge {merge!r} is not two parts with a space between")
    names = codec_names(config)
    named = [f"[PAD{i}]" if text is None else text for i, text in enumerate(tokens)]
    for text in (*named, *names, *merges):
        if not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
            raise ModelFileError(f"tokenizer: {text!r} holds half a character pair and is no valid text")
    return Vocabulary(named + names, types + [int(TokenType.CONTROL)] * len(names), merges)


def codec_names(config: ModelConfig) -> list[str]:
    """Names of the codec rows: `<|codec_7|>`, but by meaning where the config gives a row one."""
    talker, rows = config.talker, config.dims.codec_vocab
    names = [f"<|codec_{i}|>" for i in range(rows)]
    for key, value in talker.values.items():
        stem = key.removesuffix("_id")
        if stem == key or not (key.startswith("codec_") or key == "spk_id"):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 <= value < rows:
                raise ModelFileError(f"{talker.where}: {key} {value} lies outside the {rows} codec rows")
            names[value] = f"<|{stem}|>"
        else:
            for name, row in talker.ids(key, rows).items():
                names[row] = f"<|{stem}_{name}|>"
    return names


def _looks_special(text: str) -> bool:
    return text.startswith("<|") and text.endswith("|>")


def _read_merges(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
    if lines[0].startswith("#version"):
        lines = lines[1:]
    return [line.rstrip("\r") for line in lines if line.strip("\r")]


def _added_tokens(folder: Path) -> dict[int, tuple[str, bool]]:
    """Tokens beside the BPE model, from whichever of the tokenizer's files list them."""
    added: dict[int, tuple[str, bool]] = {}
    if (path := folder / "tokenizer.json").is_file():
        for entry in Section.read(path).values.get("added_tokens") or []:
            token = Section(entry, f"{path}: added_tokens")
            added[_token_id(token.values.get("id"), path)] = (token.text("content"), bool(token.values.get("special")))
    if (path := folder / "added_tokens.json").is_file():
        for text, i in Section.read(path).values.items():
            added.setdefault(_token_id(i, path), (text, False))
    if (path := folder / "tokenizer_config.json").is_file():
        for i, entry in (Section.read(path).values.get("added_tokens_decoder") or {}).items():
            token = Section(entry, f"{path}: added_tokens_decoder")
            added[_token_id(i, path)] = (token.text("content"), bool(token.values.get("special")))
    return added


def _token_id(value: Any, path: Path) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: {value!r} is not a token id") from error
