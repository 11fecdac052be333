"""Rows spoken on a Ray cluster: actors with an engine each, on any machine that has the model under the same path.

An actor that dies, alone or with its machine, is replaced by a new one wherever there is room; meanwhile the others
speak its rows (`dispatch`). Ray's own restarts and retries are off: a row waits for no machine that may not come back.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tts_cli.background import POLL_SECONDS
from tts_cli.batch.dispatch import Event
from tts_cli.batch.rows import Row
from tts_cli.batch.speaker import Outcome, Setup, Speaker
from tts_cli.errors import TtsError, UsageError

ADDRESSES = ("auto", "local")


@dataclass(frozen=True)
class Share:
    """What an actor gets of its machine; CPUs also bound its threads."""

    cpus: float = 1.0
    gpus: float = 0.0


class Actor:
    """A `Speaker` on some machine. What is wrong with its model is returned: Ray wraps what is raised."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._speaker: Speaker | None = None

    def load(self) -> str | None:
        try:
            self._speaker = Speaker(self._setup)
        except TtsError as error:
            return str(error)
        return None

    def speak(self, row: Row) -> Outcome:
        return self._speaker.speak(row)


def connect(address: str) -> None:
    """Join a cluster: "auto" (the one of this machine), HOST:PORT, or "local" for one of this process's own.

    Raises `UsageError` without the package ray, `TtsError` when there is no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # of a cluster that begins here
    try:
        import ray
    except ImportError:
        raise UsageError('--ray needs the package ray: pip install "tts-cli[ray]"') from None
    if address not in ADDRESSES and ":" not in address:
        raise UsageError(f"--ray: {address!r} is not auto, local or HOST:PORT")
    try:
        own = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = "" if address in ADDRESSES else "; one that asks for a token needs RAY_AUTH_MODE=token here, too"
        raise TtsError(f"--ray {address}: {' '.join(str(error).split())[:200]}{hint}") from None
    except BaseException:  # Ctrl-C: what has started must not stay
        ray.shutdown()
        raise


def room(share: Share) -> int:
    """How many actors the cluster's machines have room for; one lies on one machine. Raises `UsageError` for none."""
    import ray

    wanted = [(name, part) for name, part in (("CPU", share.cpus), ("GPU", share.gpus)) if part]
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = sum(int(min(machine.get(name, 0.0) / part + 1e-9 for name, part in wanted)) for machine in machines)
    if not found:
        raise UsageError(
            f"no machine of the cluster has {share.cpus:g} CPUs and {share.gpus:g} GPUs for a worker; give less "
            "(--cpus-per-worker, --gpus-per-worker), or --workers N to wait for machines that are still to come")
    return found


class Cluster:
    """A crew of actors in the cluster this process is connected to. See `dispatch.Crew`."""

    def __init__(self, setup: Setup, size: int, share: Share):
        import ray

        self.size, self.held = size, setup.held
        threads = setup.choice.threads or max(1, int(share.cpus))
        self._setup = ray.put(replace(setup, choice=replace(setup.choice, threads=threads)))
        self._actor = ray.remote(Actor).options(
            num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=0, max_task_retries=0, max_concurrency=setup.held)
        self._ray = ray
        self._waiting: dict = {}  # what an actor works on: reference -> actor

    def start(self):
        actor = self._actor.remote(self._setup)
        self._waiting[actor.load.remote()] = actor
        return actor

    def give(self, worker, row: Row) -> None:
        self._waiting[worker.speak.remote(row)] = worker

    def events(self) -> Iterable[Event]:
        done, _ = self._ray.wait(list(self._waiting), timeout=POLL_SECONDS)
        for reference in done:
            if (actor := self._waiting.pop(reference, None)) is None:
                continue  # of one that was found dead by its other row
            try:
                answer = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._waiting = {other: one for other, one in self._waiting.items() if one is not actor}
                self._ray.kill(actor)
                yield Event(actor, gone=str(error).splitlines()[0])
                continue
            if isinstance(answer, str):
                raise TtsError(answer)
            yield Event(actor, answer)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception) -> None:
        for actor in set(self._waiting.values()):
            self._ray.kill(actor)
        self._ray.shutdown()
