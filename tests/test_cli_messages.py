"""What a person reads: the help, and the line for a command line or file that cannot be used."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from cli_tools import tts

from tts_cli.cli.repl import _needs


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "clip.wav"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.3, 0.3, 48000), 24000)
    return path


def words_of(*arguments):
    return " ".join(tts(*arguments).out.decode().split())


# ---- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [[], ["convert"], ["inspect"], ["codec", "decode"], ["codec", "embed"], ["bench"]])
def test_help_shows_no_types_and_no_cut_names(verb):
    text = tts(*verb, "--help").out.decode()
    assert text.startswith(" ".join(["Usage: tts", *verb, "[OPTIONS]"]))
    assert not re.search(r"<\w|\bPath\b|…|\(none\)|default: (none|off)", text)
    assert max(map(len, text.splitlines())) <= 100


def test_root_help_has_an_example_and_whole_names():
    text = tts("--help").out.decode()
    assert 'tts -p "Good morning." -o morning.wav' in text
    for name in ("--speaker-file, --tts-speaker-file CLIP", "--format wav|wav24|wavf32|flac|mp3|ogg|opus|pcm|f32",
                 "-hf, --hf-repo OWNER/NAME[:QUANT]"):
        assert name in text


def test_needed_options_say_so():
    assert "x-vector" not in tts("codec", "decode", "--help").out.decode()
    assert "GGUF with vocoder and speaker encoder (needed)" in words_of("codec", "embed", "--help")
    assert "goes on where it ended (needed)" in words_of("batch", "--help")
    assert "default: (" not in words_of("batch", "--help") + words_of("voices", "save", "--help")


def test_the_help_of_a_batch_is_about_a_batch():
    told = words_of("batch", "--help")
    for words in ("wav is 16-bit [default: wav]", "and with --join between rows [default: 0.25, at paragraphs",
                  "[default: of each row its own, from its content]"):
        assert words in told
    assert "from the extension" not in told and "printed at the end" not in told


def test_the_root_help_has_the_exit_codes_of_the_readme():
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8").partition("| exit code |")[2]
    codes = {code for cell in re.findall(r"^\| ([\d, ]+) \|", readme, re.MULTILINE) for code in cell.split(", ")}
    told = re.search(r"Exit codes: (.*?)\. ", words_of("--help"))[1]
    assert codes == set(re.findall(r"(?:^|, |or )(\d+)", told)) and "4" in codes


# ---- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, words", [
    (["hello"], 'unexpected \'hello\': text goes after -p, in quotes: -p "hello"; verbs are repl, '),
    (["-p", "hello", "big", "world", "-o", "x.wav"], '-p "hello big world"; verbs are'),
    (["-p", "it's", "John's"], '-p "it\'s John\'s"'),
    (["inspct", "a.gguf"], "unexpected 'inspct': did you mean the verb inspect?"),
    (["codec"], "tts codec needs a verb: decode, embed (tts codec --help"),
    (["codec", "decod"], "did you mean the verb decode? (tts codec --help"),
    (["codec", "play"], "tts codec has no verb 'play'; there are decode, embed"),
    (["--promt", "x"], "there is no option --promt; did you mean --prompt? (tts --help"),
    (["--colour"], "there is no option --colour"),
    (["codec", "decode", "a.npy", "--out", "x"], "(tts codec decode --help tells more)"),
    (["codec", "decode"], "CODES.npy is missing (tts codec decode --help"),
    (["codec", "decode", "a.npy"], "--mmproj MMPROJ.gguf|nano is missing"),
    (["--temp"], "--temp needs a value"), (["--temp", "abc"], "--temp: 'abc' is not a number"),
    (["--top-k", "1.5"], "--top-k: '1.5' is not a whole number"), (["--seed", ""], "--seed: '' is not a whole number"),
    (["-t", "0"], "--threads: 0 is out of range, it is 1 to 1024"),
    (["-t", "99999"], "--threads: 99999 is out of range"),
    (["bench", "--frames", "0"], "--frames: 0 is too small, the least is 1"),
    (["bench", "-t", "1025"], "--threads: 1025 is out of range"),
])
def test_a_refused_command_line(arguments, words):
    run = tts(*arguments)
    assert run.code == 2 and words in run.error
    assert "Input should" not in run.error and "Possible options" not in run.error


# ---- configs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content, words", [
    ("threads = 99999", "c.toml: threads: 99999 is out of range"),
    ("tempp = 1", "unknown key 'tempp', did you mean 'temp'?"),
    ("top-k = 1\ntop_k = 2", "top-k and top_k are the same option"),
    ("lang = 'de'\ntts-lang = 'en'", "lang and tts-lang are the same option"),
    ('model = "C:\\Users\\me\\talker.gguf"', "single quotes"), ('model = "C:\\models\\talker.gguf"', "single quotes"),
    ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ("model = '~nosuchuser/talker.gguf'", "model = '~nosuchuser/talker.gguf'"),
])
def test_a_config_with_a_fault(tmp_path, content, words):
    config = tmp_path / "c.toml"
    config.write_text(content, encoding="utf-8")
    run = tts("--config", config, "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 2 and words in run.error


@pytest.mark.parametrize("name", ["~nosuchuser/c.toml", "x" * 5000, "c.toml/c.toml", "", "."])
def test_a_config_that_cannot_be_found(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").touch()
    run = tts("--config", name, "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 2 and "--config" in run.error


@pytest.mark.parametrize("key", ["model", "mmproj"])
def test_a_config_that_names_a_missing_file(pair, tmp_path, key):
    config = tmp_path / "c.toml"
    files = {"model": pair[0].as_posix(), "mmproj": pair[1].as_posix(), key: "gone.gguf"}
    config.write_text("".join(f"{name} = '{file}'\n" for name, file in files.items()), encoding="utf-8")
    run = tts("--config", config, "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 2 and f"{config}: {key} is {tmp_path / 'gone.gguf'}" in run.error


# ---- files --------------------------------------------------------------------------------------------------------


def test_a_config_is_an_input(pair, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(f"model = '{pair[0].as_posix()}'", encoding="utf-8")
    (tmp_path / "c.wav").hardlink_to(config)
    for arguments in ([], ["--lines"]):
        run = tts("--config", config, *([] if arguments else ["-p", "a"]), *arguments, "-o", tmp_path / "c.wav")
        assert run.code == 2 and "input" in run.error


@pytest.mark.parametrize("flag, name", [("-o", "a.wav/"), ("--dump-codes", "a.npy/"), ("--srt", "a.srt/")])
def test_a_name_that_ends_like_a_folder(pair, tmp_path, flag, name):
    out = [] if flag == "-o" else ["-o", tmp_path / "b.wav"]
    run = tts("-m", pair[0], "-p", "a", *out, flag, f"{tmp_path}/{name}")
    assert run.code == 2 and "name a file" in run.error and not list(tmp_path.iterdir())


def test_the_last_line_is_one_line_whatever_the_name(pair, tmp_path):
    run = tts("-m", pair[0], "-p", "a", "-n", "2", "-o", tmp_path / "two\nlines.wav")
    assert run.code == 0 and run.err.splitlines()[-1].startswith("'") and "two\\nlines.wav" in run.err


def test_a_web_page_behind_a_byte_order_mark(pair, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"\xef\xbb\xbf<!DOCTYPE html>")
    run = tts("-m", tmp_path / "m.gguf", "-mm", pair[1], "-p", "a", "-o", tmp_path / "a.wav")
    assert run.code == 1 and "web page" in run.error


def test_a_pair_that_does_not_fit_is_told_once(pair):
    run = tts("inspect", pair[0], pair[0])
    assert run.code == 1 and b"pair: does not fit\n" in run.out and "talker and talker" in run.error


def test_v_shows_the_defaults_as_options(pair, tmp_path):
    said = tts("-m", pair[0], "-p", "a", "-n", "2", "-v", "-o", tmp_path / "a.wav").err
    assert "sampling defaults: temp 0.9, top-k 50, top-p 1, repeat-penalty 1.05\n" in said
    assert "code predictor defaults: temp 0.9, top-k 50, top-p 1\n" in said


# ---- reference clips ----------------------------------------------------------------------------------------------


@pytest.fixture
def clone(pair, tmp_path):
    """What is said while a clip with this peak and length is cloned, by each way there is."""
    def run(peak, seconds):
        path = tmp_path / "ref.wav"
        noise = np.random.default_rng(0).uniform(-peak, peak, int(seconds * 24000))
        soundfile.write(path, noise, 24000, subtype="FLOAT")
        speak = ["-m", pair[0], "--speaker-file", path, "-n", "2", "-o", tmp_path / "a.wav"]
        return [tts("-p", "a", *speak).err, tts("--lines", *speak, stdin=b"a\n").err,
                tts("codec", "embed", path, "-mm", pair[1], "-o", tmp_path / "x.npy").err]
    return run


@pytest.mark.parametrize("peak, seconds, words", [(0.003, 2, "very quiet"), (0.3, 0.5, "short (0.50 s)"), (0.3, 2, "")])
def test_a_clip_that_makes_a_poor_voice_is_told(clone, peak, seconds, words):
    for said in clone(peak, seconds):
        assert (f"tts: warning: the reference clip is {words}" in said) if words else "reference clip" not in said


def test_the_interactive_mode_tells_it_too(tmp_path):
    soundfile.write(tmp_path / "ref.wav", np.random.default_rng(0).uniform(-0.3, 0.3, 12000), 24000)
    said = []
    assert len(_needs(None, said.append).read_clip(tmp_path / "ref.wav")) == 12000
    assert said == ["warning: the reference clip is short (0.50 s): 3 seconds of speech or more give a better voice"]


def test_an_empty_clip_name(pair, tmp_path):
    run = tts("-m", pair[0], "-p", "a", "--speaker-file", "", "-o", tmp_path / "a.wav")
    assert run.code == 2 and "empty" in run.error


def test_an_x_vector_is_npy(pair, clip, tmp_path):
    run = tts("codec", "embed", clip, "-mm", pair[1], "-o", tmp_path / "xv.txt")
    assert run.code == 2 and ".npy" in run.error and not list(tmp_path.iterdir())


# ---- codes --------------------------------------------------------------------------------------------------------


def header(text: bytes, version=1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text


@pytest.mark.parametrize("content, words", [
    (header(b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 16"), "not a .npy file"),
    (header(b"{'descr': '<i4', 'fortran_order': False, 'shape': (True, 16), }"), "not a .npy file"),
    (header(b"(" * 60000), "not a .npy file"), (header(b"", 3), "not a .npy file"),
    (b"\x93NUMPY\x03\0\xff\xff\xff\xff", "not a .npy file"), (b"\x93NUMPY", "not a .npy file"),
    (header(b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 16), }"), "not a .npy file"),
    (header(b"{'descr': '<i4', 'fortran_order': False, 'shape': (500000000, 16), }"), "claims 500000000 frames"),
    (header(b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 16), }") + b"\0" * 100, "cut short: 100 of 192"),
    (b"PK\x03\x04" + b"\0" * 50, "archive"),
])
def test_odd_codes_files(pair, tmp_path, content, words):
    path = tmp_path / "c.npy"
    path.write_bytes(content)
    run = tts("codec", "decode", path, "-mm", pair[1], "-o", tmp_path / "a.wav")
    assert run.code == 2 and words in run.error and str(path) in run.error


@pytest.mark.parametrize("kind, order", [("<i4", "C"), (">i8", "F"), ("u2", "C")])
def test_codes_of_any_integer_type_and_order(tmp_path, kind, order):
    from tts_cli.cli.npy import read_codes

    codes = np.random.default_rng(0).integers(0, 2048, (5, 16))
    np.save(tmp_path / "c.npy", np.array(codes, kind, order=order))
    read = read_codes(tmp_path / "c.npy")
    assert read.dtype == np.int32 and np.array_equal(read, codes)


# ---- greedy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, greedy", [
    ([], True), (["--temp", "0.7"], False), (["--sub-temp", "0.7"], False), (["--no-greedy"], False),
    (["--top-k", "3"], True)])
def test_what_undoes_a_greedy_of_the_config(pair, tmp_path, arguments, greedy):
    same = {tts("-m", pair[0], "-p", "Hello there", "-n", "8", "--config", "greedy", *arguments, "-s", seed, "-o",
                tmp_path / f"{seed}.wav").code for seed in (1, 2)} | {0}
    assert same == {0}
    assert ((tmp_path / "1.wav").read_bytes() == (tmp_path / "2.wav").read_bytes()) == greedy


@pytest.mark.parametrize("arguments", [["--greedy", "--temp", "0.5"], ["--sub-temp", "1", "--greedy"],
                                       ["--greedy", "--no-greedy"]])
def test_greedy_and_a_temperature_exclude_each_other(pair, tmp_path, arguments):
    run = tts("-m", pair[0], "-p", "a", "-o", tmp_path / "a.wav", *arguments)
    assert run.code == 2 and "exclude each other" in run.error
