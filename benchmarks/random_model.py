"""Write a full-size Qwen3-TTS GGUF pair with random weights, for measuring speed and memory.

    python benchmarks/random_model.py models/ --size 0.6b --type q8_0

The pair has the real dimensions, names, vocabulary size and special tokens, goes through the project's own converter
code, and is written block by block. It makes noise, not speech, and never ends by itself.
"""

import argparse
import sys
import time
import zlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tts_cli.qwen3tts.convert import BLOCK, TYPES, write_pair  # noqa: E402
from tts_cli.qwen3tts.convert.config import ModelConfig, Section, read_config  # noqa: E402
from tts_cli.qwen3tts.convert.names import Entry  # noqa: E402
from tts_cli.qwen3tts.convert.vocab import Vocabulary, join_vocabulary  # noqa: E402

SIZES = {"0.6b": (1024, 3072, "0b6"), "1.7b": (2048, 6144, "1b7")}  # hidden, intermediate, name in the config
TEXT_VOCAB, FIRST_SPECIAL, ASSISTANT = 151936, 151643, 77091  # ASSISTANT: the template's word is one token
LANGUAGES = dict(chinese=2055, english=2050, german=2053, italian=2070, portuguese=2071, spanish=2054, japanese=2058,
                 korean=2064, french=2061, russian=2069)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
            "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
            "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
            "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>",
            "</tool_response>", "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>",
            "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>", "<|audio_pad|>")


def model_config(size: str) -> ModelConfig:
    """The published Base configuration of that size."""
    hidden, intermediate, label = SIZES[size]
    decoder = dict(num_attention_heads=16, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-6, rope_theta=1e6)
    predictor = dict(decoder, hidden_size=1024, intermediate_size=3072, num_hidden_layers=5, vocab_size=2048)
    talker = dict(decoder, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=28, vocab_size=3072,
                  num_code_groups=16, text_vocab_size=TEXT_VOCAB, text_hidden_size=2048, hidden_act="silu",
                  max_position_embeddings=32768, rope_scaling=dict(mrope_section=[24, 20, 20]),
                  code_predictor_config=predictor, codec_language_id=LANGUAGES,
                  codec_pad_id=2148, codec_bos_id=2149, codec_eos_token_id=2150, codec_think_id=2154,
                  codec_nothink_id=2155, codec_think_bos_id=2156, codec_think_eos_id=2157)
    root = dict(model_type="qwen3_tts", tts_model_type="base", tts_model_size=label, talker_config=talker,
                speaker_encoder_config=dict(enc_dim=hidden))
    wav = dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=16,
               num_key_value_heads=16, head_dim=64, codebook_size=2048, codebook_dim=512, num_quantizers=16,
               latent_dim=1024, decoder_dim=1536, upsample_rates=[8, 5, 4, 3], upsampling_ratios=[2, 2],
               sliding_window=72, rms_norm_eps=1e-5, rope_theta=1e4)
    generation = dict(top_k=50, top_p=1.0, temperature=0.9, repetition_penalty=1.05, subtalker_top_k=50,
                      subtalker_top_p=1.0, subtalker_temperature=0.9)
    return read_config(Section(root, "config"), Section(dict(decoder_config=wav), "speech_tokenizer"),
                       Section(generation, "generation"))


def vocabulary(config: ModelConfig) -> Vocabulary:
    """A byte-level BPE of the real size: all letter pairs, then four-letter pieces, so that English text splits into
    pieces of two to four letters, and the word `assistant` at its real id."""
    table = {symbol: i for i, symbol in enumerate(_byte_symbols())}
    merges: list[str] = []

    def add(left: str, right: str) -> None:
        if left + right not in table:
            table[left + right] = len(table)
            merges.append(f"{left} {right}")

    word = "assistant"
    for end in range(1, len(word) - 1):
        add(word[:end], word[end])
    letters = "abcdefghijklmnopqrstuvwxyz"
    for left, right in product("Ġ" + letters + letters.upper(), letters):
        add(left, right)
    pairs = [a + b for a, b in product(letters, letters)]
    steps = np.random.default_rng(0).permutation(len(pairs) ** 2)
    for step in steps:
        if len(table) == ASSISTANT:
            add(word[:-1], word[-1])
        if len(table) == FIRST_SPECIAL:
            break
        add(pairs[step // len(pairs)], pairs[step % len(pairs)])
    assert len(table) == FIRST_SPECIAL and table[word] == ASSISTANT
    return join_vocabulary(table, {FIRST_SPECIAL + i: (text, True) for i, text in enumerate(SPECIALS)}, merges, config)


def _byte_symbols() -> list[str]:
    """The 256 characters byte-level BPE writes bytes as: printable ones as they are, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]


class RandomWeights:
    """Normal numbers for every tensor, scaled so that activations keep a size of about one through the network."""

    def __init__(self, config: ModelConfig, seed: int):
        self._config, self._seed = config, seed

    def rows(self, entry: Entry) -> Iterator[np.ndarray]:
        name, shape = entry.name, entry.shape
        if name == "token_embd.weight":
            codec = self._config.dims.codec_vocab
            yield from self._normal("text", (shape[0] - codec, shape[1]), 0.7)
            yield from self._normal("codec", (codec, shape[1]), 0.7)
        elif name == "a.gen.code.out_embd.weight":  # the same table as the talker's codec rows
            yield from self._normal("codec", shape, 0.7)
        elif name == "output.weight":
            head = np.concatenate(list(self._normal(name, shape, 3 / shape[1] ** 0.5)))
            head[self._config.eos_row] = 0  # far below the largest logits: the utterance goes on to its limit
            yield head
        elif entry.op in ("exp", "inverse_exp"):
            for block in self._normal(name, shape, 0.3):
                yield np.exp(block)
        elif len(shape) == 1 and not name.endswith(".bias"):
            yield self._generator(name).uniform(*_vector_range(name), shape).astype(np.float32)[None]
        else:
            yield from self._normal(name, shape, _spread(entry))

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng((zlib.crc32(name.encode()), self._seed))

    def _normal(self, name: str, shape: tuple[int, ...], spread: float) -> Iterator[np.ndarray]:
        generator = self._generator(name)
        width, count = shape[-1], int(np.prod(shape[:-1]))
        step = max(1, BLOCK // width)
        for start in range(0, count, step):
            yield generator.standard_normal((min(step, count - start), width), dtype=np.float32) * np.float32(spread)


def _vector_range(name: str) -> tuple[float, float]:
    if name.endswith(("ls1.weight", "ls2.weight", "gamma")):
        return 0.2, 0.6
    return (0.9, 1.9) if name.endswith(("q_norm.weight", "k_norm.weight")) else (0.6, 1.4)


def _spread(entry: Entry) -> float:
    """Standard deviation of a tensor's numbers."""
    name, shape = entry.name, entry.shape
    if name.endswith(".bias"):
        return 0.02
    if entry.op == "codebook":
        return 1.0 if ".first." in name else 0.4
    if name.endswith("code.embd.weight"):
        return 0.3
    fan_in = shape[-1] if entry.op == "stack" else int(np.prod(shape[1:]))
    if len(shape) == 3 and entry.storage == "F32":  # transposed convolution, two kernel taps per output sample
        fan_in = 2 * shape[0]
    gains = {"head.weight": 3.0, "post_conv.weight": 0.11, "conv1.weight": 0.6, "conv2.weight": 0.5}
    return next((gain for end, gain in gains.items() if name.endswith(end)), 1.0) / fan_in ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a full-size GGUF pair with random weights.")
    parser.add_argument("out", type=Path, help="folder for the two files")
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started = time.perf_counter()
    config = model_config(args.size)
    paths = write_pair(config, vocabulary(config), RandomWeights(config, args.seed).rows, args.out,
                       f"random-{args.size}", args.type)
    for path in paths:
        print(f"{path}  {path.stat().st_size / 1e9:.2f} GB")
    print(f"{time.perf_counter() - started:.0f} s, peak RSS {peak_rss() / 1e6:.0f} MB")


def peak_rss() -> int:
    """The largest resident size this process has had, in bytes."""
    if sys.platform == "win32":
        import psutil

        return psutil.Process().memory_info().peak_wset
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
