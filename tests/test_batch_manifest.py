"""Manifests as people write them: three kinds, rows made ready, and everything that is wrong told with its line."""

import json

import pytest
from fake_speech import FakeEngine

from tts_cli.batch.manifest import Entry, Problem, read_manifest
from tts_cli.batch.rows import COLUMNS, Rows, meant
from tts_cli.errors import UsageError


def read(tmp_path, name, content, by=None):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_manifest(path, by))


def ready(tmp_path, fields, engine=FakeEngine, model="model", **defaults):
    return Rows(defaults, tmp_path, [model], engine(0)).row(Entry(1, {"id": "a", "text": "Hello.", **fields}))


def test_json_lines(tmp_path):
    entries = read(tmp_path, "m.jsonl", '\ufeff{"id": 1, "text": "A"}\n\n[1]\n{"id": \n{"id": "b", "n": [2]}')
    assert entries[0] == Entry(1, {"id": 1, "text": "A"})
    assert [entry.line for entry in entries[1:3]] == [3, 4] and all(isinstance(e, Problem) for e in entries[1:3])
    assert entries[3] == Entry(5, {"id": "b", "n": [2]})


@pytest.mark.parametrize("line, told", [
    ('{"id": "a", "text": "b", "text": "c"}', "'text' is given twice"), ('{"id": "a", "n": [NaN]}', "NaN"),
    ('{"id": "a", "n": -Infinity}', "Infinity"), ('{"id": "a", "n": 1e999}', "1e999"), ('"a"', "not a JSON object")])
def test_what_is_no_json_that_everybody_reads(tmp_path, line, told):
    found = read(tmp_path, "m.jsonl", line + '\n{"id": "b", "n": 1.5}\n')
    assert told in found[0].message and found[1] == Entry(2, {"id": "b", "n": 1.5})


def test_json_nested_without_end_is_a_problem_not_a_crash(tmp_path):
    assert isinstance(read(tmp_path, "m.jsonl", "[" * 100_000)[0], Problem)


@pytest.mark.parametrize("name, mark", [("m.csv", ","), ("m.TSV", "\t")])
def test_tables(tmp_path, name, mark):
    text = 'id,text,note\r\n\r\na,"One, two\r\nlines",\r\nb,Two,x\r\n'.replace(",", mark).replace("One\t", "One,")
    assert read(tmp_path, name, text) == [
        Entry(3, {"id": "a", "text": "One, two\r\nlines"}), Entry(5, {"id": "b", "text": "Two", "note": "x"})]


@pytest.mark.parametrize("mark", ";\t")
def test_a_csv_with_semicolons_as_excel_writes_it(tmp_path, mark):
    text = '\ufeff\nid;text;speed\n\na;"One; two";0,5\nb;Two, three;\nc;Three; four;1\n'.replace(";", mark)
    *entries, problem = read(tmp_path, "m.csv", text)
    assert entries == [Entry(4, {"id": "a", "text": f"One{mark} two", "speed": "0,5"}),
                       Entry(5, {"id": "b", "text": "Two, three"})]
    assert problem.line == 6 and {";": "semicolons", "\t": "tabs"}[mark] in problem.message
    assert read(tmp_path, "m.csv", "id,text,a;b\na,b;c,\n") == [Entry(2, {"id": "a", "text": "b;c"})]


def test_a_table_with_too_many_cells_or_a_repeated_column(tmp_path):
    assert read(tmp_path, "m.csv", "id,text\na,Hello, world\nb,Two\n")[0].line == 2
    assert "text more than once" in read(tmp_path, "m.csv", "id,text,text\n")[0].message
    assert "table" in read(tmp_path, "m.csv", 'id,text\na,"open')[-1].message


def test_a_table_needs_its_columns(tmp_path):
    assert "no column id and no column text; it names a, b" in read(tmp_path, "m.csv", "a;b\nc;d\n")[0].message
    assert "no column id and no column text; it names id;text" in read(tmp_path, "m.tsv", "id;text\na;b\n")[0].message
    assert read(tmp_path, "m.csv", "ID, Text\na,b\n") == [Entry(2, {"ID": "a", "Text": "b"})]


def test_long_cells_are_read_and_endless_lines_are_not(tmp_path, monkeypatch):
    assert len(read(tmp_path, "m.csv", f"id,text\na,{'x' * (1 << 20)}\n")[0].fields["text"]) == 1 << 20
    monkeypatch.setattr("tts_cli.batch.manifest.MAX_LINE_BYTES", 1000)
    for name in ("m.jsonl", "m.txt"):
        found = read(tmp_path, name, b"\n" + b"x" * 1001)
        assert len(found) == 1 and found[0].line == 2 and "longer than" in found[0].message


@pytest.mark.parametrize("by, expected", [
    (None, [(1, "000001", "One. Two"), (2, "000002", "goes on."), (6, "000006", "Last!")]),
    ("paragraph", [(1, "000001", "One. Two\ngoes on."), (6, "000002", "Last!")]),
    ("sentence", [(1, "000001", "One."), (1, "000002", "Two\ngoes on."), (6, "000003", "Last!")]),
])
def test_plain_text(tmp_path, by, expected):
    entries = read(tmp_path, "m.txt", "One. Two\ngoes on.\n\n***\n\nLast!\n", by)
    assert [(e.line, e.fields["id"], e.fields["text"]) for e in entries] == expected
    assert [e.paragraph for e in entries] == ([0, 0, 2] if by == "sentence" else [None] * len(entries))


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv", "m.txt"])
def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path, name):
    entries = read(tmp_path, name, b'id,text\nx\xff\n')
    assert entries[-1].line == 2 and "UTF-8" in entries[-1].message


def test_manifests_that_cannot_be_read(tmp_path):
    (tmp_path / "m.csv").write_text("id,text\n")
    for path, by, told in ((tmp_path / "no.csv", None, "no such file"), (tmp_path, None, "a folder"),
                           (tmp_path / "m.csv", "line", "--by"), (tmp_path / "m.txt", "word", "--by")):
        (tmp_path / "m.txt").write_text("a")
        with pytest.raises(UsageError, match=told):
            read_manifest(path, by)


def test_a_row_takes_options_by_any_spelling_and_keeps_the_rest(tmp_path):
    row = ready(tmp_path, {"Language": "english", "top-k": "5", "temp": 1, "greedy": "no", "Take": 3, "seed": "9",
                           "gap": "0,5"})
    assert row.options == {"lang": "english", "top_k": 5, "temp": 1.0, "gap": 0.5}
    assert row.extra == {"Take": 3} and row.seed == 9
    request = row.manner().request
    assert (request.language, request.top_k, request.temperature, request.seed) == ("english", 5, 1.0, 9)


def test_a_row_counts_over_the_command_line(tmp_path):
    defaults = dict(lang="german", greedy=True, speaker_file="/clip.wav", ref_text="Words.", gap=0.5)
    row = ready(tmp_path, {"voice": "anna", "temp": 0.5}, **defaults)
    assert row.options == {"lang": "german", "voice": "anna", "temp": 0.5, "gap": 0.5}


@pytest.mark.parametrize("column, option", [
    ("sped", "speed"), ("voise", "voice"), ("Temperature", "temp"), ("speaker-fil", "speaker_file"),
    ("instructions", "instruct"), *dict.fromkeys(("chapter", "mood", "note", "title", "text_en", "x")).items()])
def test_a_column_that_is_nearly_an_option(column, option):
    assert meant(column) == option and all(meant(name) == name for name in COLUMNS)


def test_0_is_a_value_of_an_option(tmp_path):
    zeros = dict(temp=0.0, top_k=0, gap=0.0, seed=0)
    assert ready(tmp_path, {}, **zeros).options == ready(tmp_path, zeros).options == dict(temp=0.0, top_k=0, gap=0.0)
    assert ready(tmp_path, {}, **zeros).seed == 0 and ready(tmp_path, {}, greedy=False, voice=None).options == {}


def test_paths_are_found_from_the_manifest(tmp_path):
    (tmp_path / "ref.wav").write_bytes(b"clip")
    assert ready(tmp_path, {"speaker_file": "ref.wav"}).options["speaker_file"] == str(tmp_path / "ref.wav")


def test_the_key_is_of_what_decides_the_sound(tmp_path):
    for name, content in (("a.wav", b"1"), ("b.wav", b"1"), ("c.wav", b"2")):
        (tmp_path / name).write_bytes(content)

    def key(**fields):
        return ready(tmp_path, fields).key
    assert key() == key(id="b", note="x", lang="auto", speed=1, format="wav", greedy=False)
    assert key(speaker_file="a.wav") == key(speaker_file="b.wav")
    different = [key(), key(text="Hello!"), key(seed=1), key(lang="en"), key(format="flac"),
                 key(speaker_file="a.wav"), key(speaker_file="c.wav"), ready(tmp_path, {}, model="other").key]
    assert len(set(different)) == len(different)
    assert ready(tmp_path, {"id": "b"}).seed == ready(tmp_path, {}).seed != ready(tmp_path, {"text": "Other."}).seed


def test_all_that_is_wrong_with_the_columns_of_a_row_is_told(tmp_path):
    with pytest.raises(UsageError) as error:
        ready(tmp_path, {"id": "../x", "text": " ", "seed": "x", "speed": "fast", "format": "aac"})
    for words in ("id: ", "text: none given", "seed: ", "speed: ", "format: 'aac'"):
        assert words in str(error.value)


def test_the_take_does_not_depend_on_silence_and_format(tmp_path):
    text = "The first sentence is here. The second one follows after it, and is a little longer."
    rows = [ready(tmp_path, {"text": text} | options) for options in (
        {}, {"format": "mp3"}, {"max_chars": 60, "gap": 1}, {"max_chars": 60},
        {"text": text.replace(". ", ". [pause:2s] ")})]
    assert len({row.seed for row in rows}) == 1 and len({row.key for row in rows}) == 5
    assert ready(tmp_path, {"text": text, "temp": 0.5}).seed != rows[0].seed


def test_how_a_text_is_divided_counts_where_it_is(tmp_path):
    def keys(**options):
        texts = ("One sentence.", "One sentence, and a second one follows. It is long enough to stand alone, it is.")
        return [ready(tmp_path, {"text": text, **options}).key for text in texts]
    (short, long), wide, cut = keys(), keys(gap=0.5), keys(max_chars=50)
    assert wide[0] == cut[0] == keys(max_chars=50, gap=0.5)[0] == short
    assert wide[1] == keys(gap=1)[1] == keys(max_chars=300)[1] == long  # one utterance
    assert len({long, cut[1], keys(max_chars=50, gap=0.5)[1], keys(max_chars=50, gap=0)[1]}) == 4
    assert keys(max_chars=50, gap=0.25) == cut  # as it is without
    asked = "[pause:1s] One sentence. [pause:2s]"
    assert len({ready(tmp_path, {"text": text}).key for text in (asked, "One sentence.", asked.replace("2", "3"))}) == 3


def test_options_that_the_model_does_not_heed_do_not_count(tmp_path):
    class Kokoro(FakeEngine):
        unused = frozenset(("temperature", "greedy", "max_frames", "codes"))

    for engine in (FakeEngine, Kokoro):
        differ = [ready(tmp_path, option, engine).key != ready(tmp_path, {}, engine).key
                  for option in ({"temp": 1}, {"greedy": True}, {"max_frames": 9}, {"seed": 5}, {"lang": "en"})]
        assert differ == [engine is FakeEngine] * 3 + [True, True]
    greedy = [ready(tmp_path, {"greedy": True, **option}).key for option in ({}, {"top_k": 5}, {"sub_top_p": 0.5},
                                                                           {"repeat_penalty": 2})]
    assert greedy[0] == greedy[1] == greedy[2] != greedy[3]


def test_the_voice_that_speaks_counts_whether_it_was_named_or_not(tmp_path):
    for name in ("pack.bin", "clip.wav"):
        (tmp_path / name).write_bytes(b"one")

    class Named(FakeEngine):
        default_voice = "heart"

        def voice_paths(self, spec):
            return [tmp_path / "pack.bin"]

    class Cloning(FakeEngine):
        default_clip = tmp_path / "clip.wav"

    def keys(engine, **fields):
        found = [ready(tmp_path, fields, engine).key]
        path = tmp_path / ("pack.bin" if engine is Named else "clip.wav")
        path.write_bytes(b"two")
        found.append(ready(tmp_path, fields, engine).key)
        path.write_bytes(b"one")
        return found
    assert keys(Named) == keys(Named, voice="heart") == keys(Named, no_voice=True) != keys(Named, voice="bella")
    assert len({*keys(Named), *keys(Named, voice="bella")}) == 4
    assert keys(Cloning) == keys(Cloning, speaker_file="clip.wav") and len(set(keys(Cloning))) == 2
    assert len({*keys(Cloning, no_voice=True), *keys(Cloning)}) == 3
    for name in ("af_x.pt", "bf_x.pt", "same.wav"):
        (tmp_path / name).write_bytes(b"one")
    assert keys(Named, voice="af_x.pt") != keys(Named, voice="bf_x.pt")  # other languages
    assert ready(tmp_path, {"speaker_file": "same.wav"}).key == ready(tmp_path, {"speaker_file": "clip.wav"}).key


@pytest.mark.parametrize("fields, told", [
    ({"id": None}, "id: none"), ({"id": True}, "id: none"), ({"id": " "}, "id: none"), ({"text": ""}, "text: none"),
    ({"text": "…"}, "nothing to speak"), ({"text": 5}, "text: none"), ({"text": "a\ud800"}, "surrogate"),
    *(({"id": name}, "cannot name a file") for name in (
        "../a", "a/b", "a\\b", ".a", "a.", "CON", "nul.x",
        "nul .x", "com\u00b9", "CONIN$", "a\0", "a:b", "a\nb", "a\udcff", "x" * 201, "é" * 101)),
    ({"seed": 1.5}, "seed: 1.5 is not a whole number"), ({"seed": True}, "whole number"),
    ({"temp": "warm"}, "a number"), ({"temp": "1,5,0"}, "'1,5,0' is not a number"),
    ({"greedy": "maybe"}, "true or false"), ({"lang": 5}, "text"), ({"seed": 1, "Seed": 2}, "two columns"),
    ({"voice": "a", "speaker_file": "b"}, "exclude"), ({"greedy": True, "temp": 1}, "exclude"),
    ({"temp": 10 ** 400}, "temp: 1000.* is not a number"), ({"speaker_file": "a\0b.wav"}, "no such file|null"),
    ({"speaker_file": "\ud800.wav"}, "wav"), ({"speaker_file": "."}, "is not a file"),
    ({"format": "aiff"}, "format"), ({"speaker_file": "gone.wav"}, "gone.wav: no such file"),
])
def test_rows_that_are_refused(tmp_path, fields, told):
    with pytest.raises(UsageError, match=told):
        ready(tmp_path, fields)


def test_a_large_manifest_is_read_lazily(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join(json.dumps({"id": str(n), "text": "A"}) for n in range(3)) + '\n{"id": ')
    entries = read_manifest(path)
    assert next(entries).fields["id"] == "0"  # before the damaged line was seen
    assert [type(entry) for entry in entries] == [Entry, Entry, Problem]
