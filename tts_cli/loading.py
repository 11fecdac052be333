"""Which engine a model needs, and opening it."""

from collections.abc import Callable
from pathlib import Path

from tts_cli import nano
from tts_cli.engine import Engine
from tts_cli.errors import UsageError
from tts_cli.kokoro.packages import is_installed

BUILTIN, NANO = "builtin", "nano"
NAMES = (BUILTIN, NANO)  # models that come with packages, where a path is expected; a file called so is `./nano`


def open_engine(model: str | Path | None = None, mmproj: str | Path | None = None, *, device: str = "auto",
                dtype: str = "auto", graphs: bool = True,
                progress: Callable[[int, int, str], None] | None = None) -> Engine:
    """Open a model and check it without reading its weights; `load` or the first `speak` does that.

    model     a Qwen3-TTS talker (.gguf), a folder of a Kokoro checkpoint or a file in it, "builtin": the built-in
              Kokoro, or "nano". None: what `tts config set model` (or hf-repo) says, else `default_model`
    mmproj    the talker's partner; may be left out when exactly one `mmproj*.gguf` lies beside it
    device    auto, cpu, cuda, cuda:N or mps
    dtype     auto, float32 or bfloat16
    graphs    let Qwen3-TTS replay CUDA graphs where the device is one
    progress  called with (done, total, what) while `load` prepares the built-in weights for the first time

    Raises `UsageError` or `ModelFileError`.
    """
    if model is None:
        if mmproj is not None:
            raise UsageError("an mmproj was given without its talker: give the model, too")
        model, mmproj = _configured()
    if model in NAMES and mmproj is not None:
        raise UsageError(f"{model} has all that it needs: leave the mmproj out")
    if model == BUILTIN:
        from tts_cli.kokoro.engine import KokoroEngine

        return KokoroEngine.open(None, device=device, dtype=dtype, progress=progress)
    if model == NANO:
        model, mmproj = nano.TALKER, nano.MMPROJ
    if (folder := kokoro_folder(Path(model))) is not None:
        from tts_cli.kokoro.engine import KokoroEngine

        if mmproj is not None:
            raise UsageError(f"{folder} is a Kokoro checkpoint, which needs no mmproj")
        return KokoroEngine.open(folder, device=device, dtype=dtype)
    if Path(model).is_dir():
        raise UsageError(f"{model}: a folder without a Kokoro checkpoint; give a .gguf file (tts convert makes two of "
                         "a Qwen3-TTS checkpoint folder)")
    from tts_cli.qwen3tts.engine import Qwen3TTSEngine

    return Qwen3TTSEngine.open(model, mmproj, device=device, dtype=dtype, graphs=graphs)


def load_engine(model: str | Path | None = None, mmproj: str | Path | None = None, *, device: str = "auto",
                dtype: str = "auto", graphs: bool = True,
                progress: Callable[[int, int, str], None] | None = None) -> Engine:
    """`open_engine` and read the weights."""
    engine = open_engine(model, mmproj, device=device, dtype=dtype, graphs=graphs, progress=progress)
    engine.load()
    return engine


def kokoro_folder(path: Path) -> Path | None:
    """The folder of the Kokoro checkpoint that `path` is, or is a file of; None when it is none."""
    if path.is_file():
        if path.suffix.lower() not in (".pth", ".safetensors", ".json"):
            return None
        path = path.parent
    elif not path.is_dir():
        return None
    from tts_cli.kokoro.weights import is_checkpoint

    return path if is_checkpoint(path) else None


def default_model() -> str:
    """The name of what speaks when nobody chose: the built-in Kokoro where its packages are, else nano."""
    return BUILTIN if is_installed() else NANO


def _configured() -> tuple[str | Path, str | Path | None]:
    from tts_cli.settings import user_settings

    settings = user_settings()
    if model := settings.get("model"):
        return model, settings.get("mmproj")
    if repo := settings.get("hf-repo"):
        from tts_cli.hub import resolve

        return resolve(repo)
    return default_model(), None
