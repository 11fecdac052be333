"""Downloading by repository name, against a server that speaks the hub's HTTP interface.

huggingface_hub reads its settings when it is imported, so the code under test runs in a child process.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tts_cli.errors import UsageError
from tts_cli.hub import choose

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).parent.parent
CHILD = """
import json, sys
from tts_cli.errors import TtsError
from tts_cli.hub import resolve
for repo in sys.argv[1:]:
    try:
        print(json.dumps([str(path) for path in resolve(repo)]))
    except TtsError as error:
        print(json.dumps({"code": error.exit_code, "message": str(error)}))
"""


class Hub(ThreadingHTTPServer):
    """`repos` maps a repository to its files (None: listed but gone); `cut` breaks off whole files after so many
    bytes; `log` lists the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes | None]] = {}
        self.cut: int | None = None
        self.log: list[tuple[str, str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub: Hub = self.server
        hub.log.append((self.command, self.path, self.headers.get("Range")))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/main)?", self.path.split("?")[0]):
            if match[1] in hub.repos:
                siblings = [{"rfilename": name} for name in hub.repos[match[1]]]
                return self.answer(200, json.dumps({"id": match[1], "sha": COMMIT, "siblings": siblings}).encode(),
                                   {"Content-Type": "application/json"})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path):
            content = hub.repos.get(match[1], {}).get(match[2])
            if content is not None:
                return self.send_file(content)
            if match[1] in hub.repos:
                return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def send_file(self, content: bytes):
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT,
                   "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not span:
            return self.answer(200, content, headers)
        first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self.answer(206, content[first:last + 1], headers)

    def answer(self, status: int, body: bytes, headers: dict[str, str]):
        self.send_response(status)
        for name, value in (*headers.items(), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            cut = self.server.cut if status == 200 and "/resolve/" in self.path else None
            self.wfile.write(body[:cut])
            if cut is not None and cut < len(body):
                self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def run(hub, tmp_path):
    """Resolve each name in one child process; a list of [talker, mmproj] or {"code", "message"}."""

    def call(*repos: str, url: str = hub.url, **environment: str) -> list:
        others = ("HF_", "HUGGING", "HTTP", "ALL_PROXY")
        keep = {key: value for key, value in os.environ.items() if not key.upper().startswith(others)}
        settings = dict(HF_ENDPOINT=url, HF_HOME=str(tmp_path / "cache é"), HF_HUB_DISABLE_XET="1",
                        HF_HUB_DISABLE_TELEMETRY="1", PYTHONPATH=str(ROOT), PYTHONIOENCODING="utf-8", NO_PROXY="*")
        done = subprocess.run([sys.executable, "-c", CHILD, *repos], env=keep | settings | environment, text=True,
                              encoding="utf-8", capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return call


FILES = {"voice-Q8_0.gguf": b"talker 8", "voice-Q4_K_M.gguf": b"talker 4", "mmproj-voice-Q8_0.gguf": b"codec",
         "README.md": b"text", "config.json": b"{}"}


def test_downloads_once_then_works_from_the_cache(hub, run):
    hub.repos["owner/voice"] = FILES
    (paths,) = run("owner/voice")
    assert [Path(p).name for p in paths] == ["voice-Q8_0.gguf", "mmproj-voice-Q8_0.gguf"]
    assert [Path(p).read_bytes() for p in paths] == [b"talker 8", b"codec"]
    hub.log.clear()
    assert run("owner/voice") == [paths]
    assert not [entry for entry in hub.log if entry[0] == "GET" and "/resolve/" in entry[1]]
    hub.log.clear()
    assert run("owner/voice", HF_HUB_OFFLINE="1") == [paths]
    assert not hub.log
    unreachable = "http://127.0.0.1:9"  # the discard port: nothing listens
    again, missing, other = run("owner/voice", "owner/voice:Q4_K_M", "owner/other", url=unreachable)
    assert again == paths
    assert missing["code"] == other["code"] == 1
    assert "no talker in Q4_K_M" in missing["message"] and "Q8_0" in missing["message"]
    assert "cannot reach" in other["message"] and "owner/other is not in the cache" in other["message"]
    assert "\n" not in missing["message"] + other["message"]


def test_a_kokoro_checkpoint_comes_as_a_folder(hub, run):
    hub.repos["owner/kokoro"] = {"config.json": b"{}", "kokoro-v1_0.pth": b"weights", "voices/af_heart.pt": b"voice",
                                 "README.md": b"text"}
    ((folder, nothing),) = run("owner/kokoro")
    assert nothing == "None" and sorted(path.name for path in Path(folder).rglob("*.p*")) == [
        "af_heart.pt", "kokoro-v1_0.pth"]
    assert run("owner/kokoro", url="http://127.0.0.1:9") == [[folder, nothing]]


def test_quant_by_name(hub, run):
    hub.repos["owner/voice"] = FILES
    named, unknown, absent, bad = run("owner/voice:q4_k_m", "owner/voice:Q5_K", "owner/none", "just-a-name")
    assert [Path(p).name for p in named] == ["voice-Q4_K_M.gguf", "mmproj-voice-Q8_0.gguf"]
    assert [r["code"] for r in (unknown, absent, bad)] == [2, 2, 2]
    assert "no talker in Q5_K" in unknown["message"] and "Q4_K_M, Q8_0" in unknown["message"]
    assert "no repository owner/none" in absent["message"]
    assert "OWNER/NAME" in bad["message"]


def test_a_dropped_connection_is_taken_up_where_it_broke_off(hub, run):
    content = bytes(range(251)) * 56_000  # 14 MB: huggingface_hub writes in pieces of 10 MB
    hub.repos["owner/voice"] = FILES | {"voice-Q8_0.gguf": content}
    hub.cut = 12_000_000
    # Newer versions of huggingface_hub go on at once, older ones when asked again.
    _, paths = run("owner/voice", "owner/voice")
    assert Path(paths[0]).read_bytes() == content
    spans = [span for method, path, span in hub.log if method == "GET" and path.endswith("/voice-Q8_0.gguf")]
    assert len(spans) == 2 and spans[0] is None and int(re.match(r"bytes=(\d+)-", spans[1])[1]) >= 10_000_000


def test_a_failed_download_keeps_the_complete_files(hub, run):
    hub.repos["owner/voice"] = FILES | {"mmproj-voice-Q8_0.gguf": None}
    (failed,) = run("owner/voice")
    assert failed["code"] == 1 and "mmproj-voice-Q8_0.gguf of owner/voice failed" in failed["message"]
    assert "\n" not in failed["message"]
    hub.repos["owner/voice"] = FILES
    hub.log.clear()
    (paths,) = run("owner/voice")
    assert Path(paths[1]).read_bytes() == b"codec"
    assert [path for method, path, _ in hub.log if method == "GET" and "/resolve/" in path] \
        == ["/owner/voice/resolve/main/mmproj-voice-Q8_0.gguf"]


Q = "m-{}.gguf".format


@pytest.mark.parametrize("files, quant, expected", [
    ([Q("Q4_K_M"), Q("Q8_0"), "mmproj-m-Q8_0.gguf"], None, ("m-Q8_0.gguf", "mmproj-m-Q8_0.gguf")),
    ([Q("Q4_K_M"), Q("F16"), "mmproj-m-Q8_0.gguf"], None, ("m-Q4_K_M.gguf", "mmproj-m-Q8_0.gguf")),
    ([Q("BF16"), "mmproj-m-F32.gguf"], None, ("m-BF16.gguf", "mmproj-m-F32.gguf")),
    (["talker.gguf", "mmproj.gguf"], None, ("talker.gguf", "mmproj.gguf")),
    ([Q("Q8_0"), Q("F16"), "mmproj-m-Q8_0.gguf", "mmproj-m-F16.gguf"], "f16", ("m-F16.gguf", "mmproj-m-F16.gguf")),
    ([Q("Q8_0"), "mmproj-m-F16.gguf", "mmproj-m-BF16.gguf"], None, ("m-Q8_0.gguf", "mmproj-m-F16.gguf")),
    (["q/Qwen3-TTS-1.7B-Base.Q8_0.gguf", "q/MMPROJ-x.gguf"], "Q8_0",
     ("q/Qwen3-TTS-1.7B-Base.Q8_0.gguf", "q/MMPROJ-x.gguf")),
    (["voices/bf_b.pt", "voices/af_a.pt", "voices/x.txt", "samples/a.wav", "kokoro-v1_0.pth", "config.json"],
     None, ("config.json", "kokoro-v1_0.pth", "voices/af_a.pt", "voices/bf_b.pt")),
    ([Q("IQ4_XS"), "mmproj-m-IQ4_XS.gguf"], "iq4_xs", ("m-IQ4_XS.gguf", "mmproj-m-IQ4_XS.gguf")),
])
def test_which_files_are_taken(files, quant, expected):
    assert choose(files, quant, "o/r") == expected


@pytest.mark.parametrize("files, quant, words", [
    (["README.md"], None, "no GGUF files"),
    (["config.json", "kokoro-v1_0.pth"], "Q8_0", "Kokoro checkpoint, which has no quants"),
    ([Q("Q8_0")], None, "no mmproj*.gguf"),
    (["mmproj-m-Q8_0.gguf"], None, "no talker"),
    ([Q("Q8_0-00001-of-00002"), Q("Q8_0-00002-of-00002")], None, "split in parts"),
    ([Q("F16"), Q("F32"), "mmproj-m-Q8_0.gguf"], None, "o/r:QUANT from F16, F32"),
    ([Q("F16"), "mmproj-m-Q8_0.gguf"], "Q8_0", "no talker in Q8_0"),
    ([Q("Q8_0"), "n-Q8_0.gguf", "mmproj-m-Q8_0.gguf"], None, "several files that fit: m-Q8_0.gguf, n-Q8_0.gguf"),
    ([Q("Q8_0"), "mmproj-m-Q4_0.gguf", "mmproj-m-Q5_0.gguf"], None, "several mmproj"),
])
def test_what_cannot_be_chosen_is_told(files, quant, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        choose(files, quant, "o/r")
