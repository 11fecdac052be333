"""`tts serve`: speech for programs, over HTTP and WebSocket, from one loaded model."""

import contextlib
import ipaddress
import logging
import sys
from typing import Annotated

import typer

from tts_cli.cli import options as o
from tts_cli.cli.console import Console, tell
from tts_cli.cli.sources import chosen_voice, locate_pair, read_ref_text
from tts_cli.engine import SpeechRequest
from tts_cli.errors import UsageError
from tts_cli.manner import Manner
from tts_cli.model_choice import ModelChoice

NEEDS = 'tts serve needs its packages: pip install "tts-cli[server]", in a checkout pip install ".[server]"'
_ON_CUDA = 4  # requests in turn, where a step costs the same for several


def _number(*names: str, panel: str, metavar: str, help: str, default: str | bool = True, **more):
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, show_default=default, **more)


Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on", rich_help_panel="Network")]
Port = Annotated[int, _number("--port", panel="Network", metavar="PORT", min=0, max=65535,
                              help="Port to listen on; 0 takes a free one")]
ApiKey = Annotated[str | None, typer.Option(
    "--api-key", metavar="KEY", envvar="TTS_API_KEY", rich_help_panel="Network", show_default="TTS_API_KEY",
    help="Ask for this key (Authorization: Bearer KEY)")]
NoAuth = Annotated[bool, typer.Option("--no-auth", rich_help_panel="Network", show_default="off",
                                      help="Serve other machines without a key")]
CorsOrigin = Annotated[str | None, typer.Option(
    "--cors-origin", metavar="ORIGIN,...", rich_help_panel="Network", show_default="none",
    help="Let pages of these origins ask, such as https://example.com; * means all")]
Parallel = Annotated[int | None, _number("--parallel", panel="Load", metavar="N", min=1, default="1, on CUDA 4",
                                         help="Requests spoken in turn at a time; above 1 --chunk-frames is 1,1,2,4")]
Queue = Annotated[int, _number("--queue", panel="Load", metavar="N", min=0,
                               help="How many more may wait; beyond that the answer is 503")]
MaxText = Annotated[int, _number("--max-text", panel="Limits", metavar="N", min=1,
                                 help="Longest text of a request in characters")]
MaxBody = Annotated[float, _number("--max-body", panel="Limits", metavar="MIB", min=0.001,
                                   help="Largest request in MiB")]
MaxClip = Annotated[float, _number("--max-clip", panel="Limits", metavar="MIB", min=0.001,
                                   help="Largest recording to clone in MiB")]
MaxClipSeconds = Annotated[float, _number("--max-clip-seconds", panel="Limits", metavar="SECONDS", min=1, max=60,
                                          help="Longest recording to clone")]
WriteTimeout = Annotated[float, _number("--write-timeout", panel="Limits", metavar="SECONDS", min=0.1,
                                        help="Cut off a client that takes nothing for so long")]
ReadTimeout = Annotated[float, _number("--read-timeout", panel="Limits", metavar="SECONDS", min=0.1,
                                       help="Cut off a client that takes longer to ask, or for 64 KiB of its request")]
IdleTimeout = Annotated[float, _number("--idle-timeout", panel="Limits", metavar="SECONDS", min=0.1,
                                       help="Close a WebSocket that says nothing for so long")]
Grace = Annotated[int, _number("--grace", panel="Limits", metavar="SECONDS", min=1,
                               help="After SIGTERM or Ctrl-C, how long running requests may still take")]
LogText = Annotated[bool, typer.Option("--log-text", rich_help_panel="Limits", show_default="off",
                                       help="Log the texts, too, not only the requests")]


def serve(
    ctx: typer.Context, *, config: o.Config = None,
    model: o.Model = None, mmproj: o.Mmproj = None, hf_repo: o.HfRepo = None,
    device: o.Device = "auto", dtype: o.Dtype = "auto", threads: o.Threads = None, gpu_layers: o.GpuLayers = None,
    no_graphs: o.NoGraphs = False,
    lang: o.Lang = "auto", voice: o.Voice = None, speaker_file: o.SpeakerFile = None, ref_text: o.RefText = None,
    ref_text_file: o.RefTextFile = None, trim_ref: o.TrimRef = False, no_voice: o.NoVoice = False,
    speed: o.Speed = 1.0, text_mode: o.TextMode = None,
    temp: o.Temp = None, top_k: o.TopK = None, top_p: o.TopP = None, repeat_penalty: o.RepeatPenalty = None,
    sub_temp: o.SubTemp = None, sub_top_k: o.SubTopK = None, sub_top_p: o.SubTopP = None,
    greedy: o.Greedy = False, no_greedy: o.NoGreedy = False, seed: o.Seed = None,
    max_chars: o.MaxChars = None, gap: o.Gap = None, chunk_frames: o.ChunkFrames = None,
    host: Host = "127.0.0.1", port: Port = 8080, api_key: ApiKey = None, no_auth: NoAuth = False,
    cors_origin: CorsOrigin = None, parallel: Parallel = None, queue: Queue = 64,
    max_text: MaxText = 20_000, max_body: MaxBody = 16, max_clip: MaxClip = 10, max_clip_seconds: MaxClipSeconds = 60,
    write_timeout: WriteTimeout = 30, read_timeout: ReadTimeout = 30, idle_timeout: IdleTimeout = 60,
    grace: Grace = 30, log_text: LogText = False,
    quiet: o.Quiet = False, verbose: o.Verbose = False,
) -> int:
    """Serve speech to programs: OpenAI's /v1/audio/speech, /tts, WebSocket, and a page. Speech options are defaults."""
    console = Console(quiet, verbose)
    try:
        from tts_cli.server.app import create_app
        from tts_cli.server.run import Server, listen, url_of
        from tts_cli.server.service import manner_in_turns, service_in
        from tts_cli.server.settings import MIB, ServerSettings
    except ModuleNotFoundError as error:
        raise UsageError(f"{NEEDS} ({error.name} is missing)") from None
    if api_key is None and not no_auth and not _is_loopback(host):
        raise UsageError(f"--host {host} lets other machines in: give --api-key KEY (or TTS_API_KEY), or --no-auth")
    choice = ModelChoice(locate_pair(ctx, model, mmproj, hf_repo), device, dtype, threads, gpu_layers,
                         not no_graphs)
    voice, voice_file, speaker_file = chosen_voice(ctx, voice, speaker_file, no_voice)
    with o.flags_named():
        request = SpeechRequest(
            text="", language=lang, voice=voice, speed=speed, text_mode=text_mode,
            temperature=temp, top_k=top_k, top_p=top_p, repeat_penalty=repeat_penalty,
            sub_temperature=sub_temp, sub_top_k=sub_top_k, sub_top_p=sub_top_p,
            greedy=o.chosen_greedy(ctx, greedy, no_greedy), seed=seed, chunk_frames=o.parse_chunk_frames(chunk_frames))
    manner = Manner(request, speaker_file, max_chars, gap, voice_file, read_ref_text(ctx, ref_text, ref_text_file),
                    trim_ref, no_voice)
    manner.pieces("a")  # --max-chars and --gap
    clip = manner.read_clip(console)
    listener = listen(host, port)
    engine = choice.open(console)
    with o.flags_named():
        manner.check(engine, "a")
    choice.tell(console, engine)
    if parallel is None:
        parallel = _ON_CUDA if getattr(getattr(engine, "device", None), "type", "cpu") == "cuda" else 1
    if parallel > 1 and chunk_frames is None:
        manner = manner_in_turns(manner)
    with o.flags_named():
        settings = ServerSettings(
            parallel=parallel, queue=queue, max_text=max_text, max_body=round(max_body * MIB),
            max_clip_bytes=round(max_clip * MIB), max_clip_seconds=max_clip_seconds, write_timeout=write_timeout,
            read_timeout=read_timeout, idle_timeout=idle_timeout, api_key=api_key, cors_origins=_listed(cors_origin),
            local_names=api_key is None and _is_loopback(host), log_text=log_text)
    _log_to_stderr(quiet, verbose)
    tell(f"tts: serving on {url_of(listener)}")
    service = service_in(manner, engine, clip, settings, console)
    server = Server(create_app(service), service, grace, console)
    return _run(service, server, listener)


def _run(service, server, listener) -> int:
    """Until SIGTERM or Ctrl-C, or the model cannot be loaded; then it raises what was wrong with it."""

    def loaded(future) -> None:
        if future.exception() is not None:
            server.should_exit = True

    service.worker.loaded.add_done_callback(loaded)
    with contextlib.closing(service):
        server.run([listener])
    if service.worker.loaded.done() and service.worker.loaded.exception() is not None:
        raise service.worker.loaded.exception()
    return 0


def _listed(given: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (given or "").split(",") if part.strip())


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _log_to_stderr(quiet: bool, verbose: bool) -> None:
    """Requests and faults, one line each; with -v what uvicorn does, too, and tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(verbose))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("tts_cli.server").setLevel(logging.ERROR if quiet else logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.INFO if verbose else logging.CRITICAL)


class _Line(logging.Formatter):
    def __init__(self, verbose: bool):
        super().__init__("%(asctime)s %(message)s", "%H:%M:%S")
        self._verbose = verbose

    def formatException(self, exc_info) -> str:
        return super().formatException(exc_info) if self._verbose else f"{exc_info[0].__name__}: {exc_info[1]}"
