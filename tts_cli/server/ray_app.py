"""The server on many machines: each replica of a Ray Serve deployment has an engine and the application of `app`.

`serve run configs/ray-serve.yaml` calls `build`. Ray Serve starts, watches and replaces replicas, adds some when
requests queue, and shares requests out; what a request is and how it is answered is the same as with `tts serve`.
"""

import os
from dataclasses import fields

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from tts_cli.batch.rows import COLUMNS, manner_of
from tts_cli.errors import TtsError, UsageError
from tts_cli.loading import BUILTIN
from tts_cli.model_choice import ModelChoice
from tts_cli.notices import Notices
from tts_cli.server.app import create_app
from tts_cli.server.service import manner_in_turns, service_in
from tts_cli.server.settings import ServerSettings

API_KEY = "TTS_API_KEY"  # in the environment of the replicas: a file of settings is no place for it
SPEECH_OPTIONS = sorted(COLUMNS.keys() - {"format"})
LIMITS = sorted(field.name for field in fields(ServerSettings) if field.name != "api_key")


class ReplicaArgs(BaseModel):
    """What every replica is made of: `args` of the application. All paths are those of the replica's machine."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="A talker (.gguf) or a Kokoro checkpoint; None: the built-in voice")
    mmproj: str | None = Field(None, description="The talker's partner, where it is not found beside it")
    hf_repo: str | None = Field(None, description="OWNER/NAME to download, instead of a model")
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = Field(None, ge=1, description="None: the CPUs that Ray reserves for the replica")
    speech: dict = Field({}, description="Defaults of requests, by the names of the command line's options")
    limits: dict = Field({}, description="Fields of `ServerSettings`, but for the key")
    version: str = Field("", description="Anything: a new one restarts the replicas, when files changed in place")

    def settings(self) -> ServerSettings:
        """Raises `UsageError` for a limit that does not exist or makes no sense.

        By default as many requests wait in a replica as it speaks: the others wait where every replica gets at them.
        Without a key only requests to this machine's number or to localhost are answered.
        """
        _check_names("limits", self.limits, LIMITS)
        key = os.environ.get(API_KEY) or None
        defaults = {"queue": self.limits.get("parallel", 1), "local_names": key is None}
        return ServerSettings(**defaults | self.limits, api_key=key)

    def choice(self) -> ModelChoice:
        """Raises `UsageError` when two models were given."""
        if self.hf_repo is not None and (self.model, self.mmproj) != (None, None):
            raise UsageError("hf_repo: give it, or model and mmproj, not both")
        if self.model is None and self.mmproj is not None:
            raise UsageError("mmproj: it goes with a talker: give the model, too")
        model = BUILTIN if self.model is None else self.model
        pair = (model, self.mmproj) if self.hf_repo is None else self.hf_repo
        return ModelChoice(pair, self.device, self.dtype, self.threads, None)


class Replica:
    """What Ray Serve asks of a replica besides requests. `app`: the application, from Serve's own base class."""

    def check_health(self) -> None:
        """Called by Serve every few seconds; whoever raises is replaced."""
        status = self.app.state.service.status
        if status != "ok":
            raise TtsError(f"the model is {status}")


def build(args: ReplicaArgs) -> serve.Application:
    """The application that a configuration file names. Raises `UsageError`."""
    return deployment(args).bind()


def deployment(args: ReplicaArgs) -> serve.Deployment:
    """Replicas of `args`. A configuration file changes the options under the name `Speech`.

    Raises `UsageError` for arguments that no machine could use; what is wrong with a model is found by the replicas.
    """
    settings = args.settings()
    args.choice()
    _check_names("speech", args.speech, SPEECH_OPTIONS)
    manner_of(args.speech).pieces("a")  # max_chars and gap

    def application() -> FastAPI:
        return speech_application(args)

    return serve.deployment(
        serve.ingress(application)(Replica), name="Speech",
        max_ongoing_requests=settings.parallel + settings.queue,
        health_check_period_s=5, health_check_timeout_s=30, graceful_shutdown_timeout_s=60)


def speech_application(args: ReplicaArgs) -> FastAPI:
    """The application of one replica, when its model is loaded; `state.service` is its service.

    A replica that still loads would be given requests, and one that cannot load must not take another's place.
    Raises `TtsError`.
    """
    settings, manner, told = args.settings(), manner_of(args.speech), Notices()
    if settings.parallel > 1:
        manner = manner_in_turns(manner)
    clip = manner.read_clip(told)
    engine = args.choice().open(told)
    manner.check(engine, "a")
    service = service_in(manner, engine, clip, settings, told)
    app = create_app(service)
    app.state.service = service
    service.worker.loaded.result()
    return app


def _check_names(where: str, given: dict, known: list[str]) -> None:
    if unknown := sorted(given.keys() - set(known)):
        raise UsageError(f"{where}: {', '.join(map(str, unknown))}: unknown; there are {', '.join(known)}")
