"""The server on Ray Serve, on a real cluster in this machine: two replicas, one of which is killed."""

import concurrent.futures
import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest
import yaml
from server_tools import serving, until

serve = pytest.importorskip("ray.serve")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(170)]

from tts_cli.errors import ModelFileError, TtsError, UsageError  # noqa: E402 - after the skip
from tts_cli.loading import load_engine  # noqa: E402
from tts_cli.qwen3tts.engine import Qwen3TTSEngine  # noqa: E402
from tts_cli.server import ray_app  # noqa: E402
from tts_cli.server.ray_app import ReplicaArgs  # noqa: E402

CONFIG = Path(__file__).parent.parent / "configs" / "ray-serve.yaml"
STORE_BYTES = 80 << 20
APP = f"tts-{os.getpid()}"  # its replicas are found by this name among all processes
SHORT = {"input": "one", "n_predict": 2, "seed": 0, "response_format": "pcm"}
ENDLESS = {"input": "a word", "n_predict": 30_000, "temperature": 0, "stream": True, "response_format": "pcm"}
PLACES = 16  # of a replica


class Deployed:
    def __init__(self, url: str, model: Path):
        self.url, self._model = url, str(model)

    def deploy(self, **speech) -> None:
        """Two replicas, in place of those that there are. Returns when all are ready."""
        args = ReplicaArgs(model=self._model, device="cpu", dtype="float32", speech={"no_voice": True} | speech,
                           limits={"parallel": PLACES, "queue": 0, "max_body": 100_000})
        serve.run(ray_app.deployment(args).options(num_replicas=2).bind(), name=APP)

    def speak(self, **fields) -> httpx.Response:
        return httpx.post(f"{self.url}/tts", json=SHORT | fields, timeout=60)

    @contextlib.contextmanager
    def endless(self):
        """The pieces of a stream that has begun."""
        with httpx.stream("POST", f"{self.url}/tts", json=ENDLESS, timeout=60) as answer:
            assert answer.status_code == 200
            pieces = answer.iter_raw()
            next(pieces)
            yield pieces

    @contextlib.contextmanager
    def asking(self):
        """Somebody sends one request after the other meanwhile: a list of the answers."""
        answers, ended = [], threading.Event()

        def ask():
            while not ended.wait(0.05):
                answers.append(self.speak())

        with concurrent.futures.ThreadPoolExecutor() as pool:
            running = pool.submit(ask)
            try:
                yield answers
            finally:
                ended.set()
            running.result()  # raises when a connection broke

    @property
    def replicas(self) -> set[int]:
        """Process ids. Looking through all processes takes a while: who waits for a change leaves the others time."""
        time.sleep(0.2)
        return {process.pid for process in psutil.process_iter(["cmdline"])
                if (process.info["cmdline"] or [""])[0].startswith(f"ray::ServeReplica:{APP}:")}


@pytest.fixture(scope="module")
def deployed(own_folders, endless):
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 4, "object_store_memory": STORE_BYTES, "include_dashboard": False,
        "_system_config": {"worker_niceness": 0}})  # else replicas start last on a busy machine
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        ray.init(cluster.address, log_to_driver=False, configure_logging=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        deployed = Deployed(f"http://127.0.0.1:{port}", endless[0])
        deployed.deploy()
        yield deployed
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_replicas_answer_as_one_server(deployed, endless):
    assert len(deployed.replicas) == 2
    with serving(load_engine(*endless, device="cpu", dtype="float32")) as alone:
        expected = alone.pcm("one", n_predict=9)
    assert {deployed.speak(n_predict=9, stream=stream).content for stream in (False, True)} == {expected}
    assert httpx.get(f"{deployed.url}/health").json() == {"status": "ok"}


def test_refusals_have_their_shape(deployed):
    answer = deployed.speak(n_predict=0)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "n_predict"
    answer = deployed.speak(input="a" * 100_001)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


def test_a_client_that_goes_frees_its_place(deployed):
    for _ in range(2 * PLACES + 4):
        with deployed.endless():
            pass
    assert deployed.speak().status_code == 200


def test_a_replica_is_killed_under_eight_streams(deployed):
    before = deployed.replicas
    started, ended = threading.Barrier(9, timeout=60), threading.Event()
    broken, whole = [], []

    def listen():
        with deployed.endless() as pieces:
            started.wait()
            try:
                for _ in pieces:
                    if ended.is_set():
                        return whole.append(False)
            except httpx.RemoteProtocolError:
                return broken.append(True)  # a client can tell
        raise AssertionError("half a speech looked like a whole one")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        listeners = [pool.submit(listen) for _ in range(8)]
        started.wait()
        psutil.Process(min(before)).kill()
        with deployed.asking() as answers:
            try:
                until(lambda: broken and len(answers) >= 10, 60)
            finally:
                ended.set()
            for job in listeners:
                job.result(60)
            until(lambda: len(deployed.replicas - before) == 1, 60)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(broken) + len(whole) == 8 and whole
    assert min(before) not in deployed.replicas and len(deployed.replicas) == 2


def test_an_update_replaces_replicas_under_requests(deployed):
    before, old = deployed.replicas, deployed.speak(seed=7).content
    with deployed.asking() as answers:
        deployed.deploy(seed=7)
    assert {answer.status_code for answer in answers} == {200}
    assert {deployed.speak(seed=None).content for _ in range(8)} == {old}
    until(lambda: not deployed.replicas & before)


@pytest.mark.parametrize("args, message", [
    ({"limits": {"paralel": 2}}, "paralel"), ({"limits": {"parallel": 0}}, "parallel"),
    ({"limits": {"api_key": "a"}}, "api_key"), ({"speech": {"tempo": 2}}, "tempo"), ({"speech": {"speed": 9}}, "speed"),
    ({"hf_repo": "a/b", "model": "c"}, "hf_repo"), ({"mmproj": "c"}, "mmproj"),
])
def test_arguments_that_are_refused(args, message):
    with pytest.raises(UsageError, match=message):
        ray_app.build(ReplicaArgs(**args))


def test_a_model_that_cannot_be_loaded_makes_no_replica(pair, tmp_path, monkeypatch):
    with pytest.raises(TtsError, match="gone.gguf"):
        ray_app.speech_application(ReplicaArgs(model=str(tmp_path / "gone.gguf")))

    def load(self):
        raise ModelFileError("the disk has a hole")

    monkeypatch.setattr(Qwen3TTSEngine, "load", load)
    with pytest.raises(ModelFileError, match="a hole"):
        ray_app.speech_application(ReplicaArgs(model=str(pair[0])))


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_replica_is_as_healthy_as_its_model(status):
    replica = ray_app.Replica()
    replica.app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(status=status)))
    with contextlib.nullcontext() if status == "ok" else pytest.raises(TtsError, match="failed"):
        replica.check_health()


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TTS_API_KEY", "secret")
    with_key = ReplicaArgs().settings()
    monkeypatch.delenv("TTS_API_KEY")
    without = ReplicaArgs().settings()
    assert (with_key.api_key, with_key.local_names) == ("secret", False)
    assert (without.api_key, without.local_names) == (None, True)


def test_the_configuration_file_fits():
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))
    app, = schema.applications
    args = ReplicaArgs(**app.args)
    module, _, name = app.import_path.partition(":")
    assert (module, getattr(ray_app, name)) == (ray_app.__name__, ray_app.build)
    made = ray_app.deployment(args)
    assert [option.name for option in app.deployments] == [made.name]
    scaling = app.deployments[0].autoscaling_config
    assert scaling["target_ongoing_requests"] == args.settings().parallel <= made.max_ongoing_requests
