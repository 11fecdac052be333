"""Model files from the Hugging Face hub: which files of a repository to take, and the shared cache they lie in."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tts_cli.errors import TtsError, UsageError

TALKER_CHOICE = ("Q8_0", "Q4_K_M")
MMPROJ_CHOICE = ("Q8_0", "F16", "BF16", "F32")  # after the talker's own
_CONFIG = "config.json"
_KOKORO_WEIGHTS = ("kokoro-v1_0.safetensors", "kokoro-v1_0.pth")
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REPO = re.compile(rf"({_PART}/{_PART})(?::([A-Za-z0-9_]+))?")
_QUANT = re.compile(r"(?:^|[-._])((?:IQ|TQ|Q)\d(?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4|NVFP4)(?=[-._]|$)", re.IGNORECASE)
_SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


def resolve(repo: str) -> tuple[Path, Path | None]:
    """Local paths of talker and mmproj of "OWNER/NAME" or "OWNER/NAME:QUANT", or a Kokoro checkpoint's folder and None.

    Downloads what the cache lacks (a dropped connection is taken up again where it broke off); without a network the
    cache alone is used. Raises `UsageError` for a name, repository or quant there is not, `TtsError` when the hub
    cannot be reached or a download fails.
    """
    match = _REPO.fullmatch(repo.strip())
    if not match:
        raise UsageError(f"{repo!r} is not a repository name; write OWNER/NAME or OWNER/NAME:QUANT")
    name, quant = match[1], match[2]
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    # The HTTP client below huggingface_hub differs by version; its root error is the first base of the hub's own.
    network_errors = (OSError, HfHubHTTPError.__bases__[0])
    try:
        files = [sibling.rfilename for sibling in HfApi().model_info(name).siblings or ()]
    except GatedRepoError as error:
        raise UsageError(f"{name} asks for a licence to be accepted: do that on its web page, then `hf auth login`"
                         ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UsageError(f"the hub has no repository {name} (if it is private: `hf auth login`)") from error
    except network_errors as error:
        cached = _cached(name)
        if not cached:
            raise TtsError(f"cannot reach the model hub ({_reason(error)}), and {name} is not in the cache; check the "
                           "connection, or download the files elsewhere and give them with -m and -mm") from error
        try:
            chosen = choose(cached, quant, name)
        except UsageError as fault:
            raise TtsError(f"cannot reach the model hub ({_reason(error)}); of what the cache holds, {fault}"
                           ) from error
        return _located(chosen, [cached[file] for file in chosen])
    paths = []
    chosen = choose(files, quant, name)
    for file in chosen:
        try:
            paths.append(Path(hf_hub_download(name, file)))
        except network_errors as error:
            raise TtsError(f"downloading {file} of {name} failed ({_reason(error)}); "
                           "run the same command again, files already complete are kept") from error
    return _located(chosen, paths)


def _located(chosen: Sequence[str], paths: Sequence[Path]) -> tuple[Path, Path | None]:
    return (paths[0].parent, None) if chosen[0] == _CONFIG else (paths[0], paths[1])


def choose(files: Iterable[str], quant: str | None, repo: str) -> tuple[str, ...]:
    """The talker and the mmproj among a repository's file names, or config.json, weights and voices of Kokoro.

    Talker: the quant asked for, else Q8_0, Q4_K_M or the only one. mmproj: the talker's quant, else Q8_0, F16, BF16,
    F32 or the only one. Raises `UsageError` saying what there is.
    """
    files = sorted(files)
    if kokoro := _kokoro(files):
        if quant:
            raise UsageError(f"{repo} is a Kokoro checkpoint, which has no quants; give {repo} alone")
        return kokoro
    ggufs = sorted(file for file in files if file.lower().endswith(".gguf"))
    whole = [file for file in ggufs if not _SPLIT.search(_stem(file))]
    if not whole:
        what = "only GGUF files split in parts, which are not read: join them first" if ggufs else "no GGUF files"
        raise UsageError(f"{repo} holds {what}")
    mmprojs = _by_quant(file for file in whole if _stem(file).lower().startswith("mmproj"))
    talkers = _by_quant(file for file in whole if not _stem(file).lower().startswith("mmproj"))
    if not talkers or not mmprojs:
        raise UsageError(f"{repo} has no {'mmproj*.gguf' if talkers else 'talker'} file: a Qwen3-TTS repository "
                         f"holds a talker and an mmproj; it has {', '.join(whole)}")
    wanted = (quant.upper(),) if quant else TALKER_CHOICE
    chosen = _pick(talkers, wanted, only=not quant)
    if chosen is None:
        problem = f"no talker in {wanted[0]}" if quant else "no Q8_0 or Q4_K_M talker"
        raise UsageError(f"{repo} has {problem}; choose with {repo}:QUANT from {', '.join(map(_shown, talkers))}")
    partner = _pick(mmprojs, (chosen, *MMPROJ_CHOICE), only=True)
    if partner is None:
        raise UsageError(f"{repo} has several mmproj files and none in {', '.join(MMPROJ_CHOICE)}: "
                         f"download one of {', '.join(map(_shown, mmprojs))} and give it with -mm")
    return _single(talkers[chosen], repo), _single(mmprojs[partner], repo)


def _kokoro(files: Sequence[str]) -> tuple[str, ...]:
    """config.json first; empty when these are not the files of a Kokoro checkpoint."""
    weights = [file for file in _KOKORO_WEIGHTS if file in files]
    if not weights or _CONFIG not in files:
        return ()
    voices = [file for file in files if PurePosixPath(file).parent.as_posix() == "voices"
              and PurePosixPath(file).suffix in (".pt", ".bin", ".npz", ".safetensors")]
    return (_CONFIG, weights[0], *voices)


def _pick(found: dict[str, list[str]], wanted: Iterable[str], only: bool) -> str | None:
    best = next((quant for quant in wanted if quant in found), None)
    return next(iter(found)) if best is None and only and len(found) == 1 else best


def _single(files: list[str], repo: str) -> str:
    if len(files) > 1:
        raise UsageError(f"{repo} holds several files that fit: {', '.join(files)}; "
                         "download two of them and give them with -m and -mm")
    return files[0]


def _by_quant(files: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in files:
        quants = _QUANT.findall(_stem(file))
        found.setdefault(quants[-1].upper() if quants else "", []).append(file)
    return found


def _stem(file: str) -> str:
    return PurePosixPath(file).name[: -len(".gguf")]


def _shown(quant: str) -> str:
    return quant or "(no quant in its name)"


def _cached(repo: str) -> dict[str, Path]:
    """What the cache holds of the repository's main revision: name in the repository to path."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return {}
    for entry in repos:
        if entry.repo_type == "model" and entry.repo_id == repo and "main" in entry.refs:
            revision = entry.refs["main"]
            return {f.file_path.relative_to(revision.snapshot_path).as_posix(): f.file_path for f in revision.files}
    return {}


def _reason(error: BaseException) -> str:
    """One line, of the innermost error: the outer ones of huggingface_hub are paragraphs of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return lines[0].strip() if lines and lines[0].strip() else type(error).__name__
