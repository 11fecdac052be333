"""`tts batch --ray` on a real cluster of two nodes in this machine."""

import json

import pytest
from cli_tools import tts
from test_batch_run import manifest, results

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(170)]

from tts_cli.batch import cluster as batch_cluster  # noqa: E402 - after the skip
from tts_cli.batch.content import file_sha256  # noqa: E402
from tts_cli.batch.dispatch import outcomes  # noqa: E402
from tts_cli.batch.speaker import Setup  # noqa: E402
from tts_cli.errors import TtsError, UsageError  # noqa: E402
from tts_cli.model_choice import ModelChoice  # noqa: E402

STORE_BYTES = 80 << 20
ROWS = [{"id": f"r{n}", "text": f"Sentence number {n} is spoken.", "max_frames": 2 + n % 3} for n in range(60)]


@pytest.fixture(scope="module")
def nodes(own_folders):
    """(cluster, the second node); one CPU each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False})
    second = made.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    yield made, second
    ray.shutdown()
    made.shutdown()


def run(pair, folder, *arguments):
    folder.mkdir()
    done = tts("batch", manifest(folder, ROWS), "-o", folder / "out", "-m", pair[0], "--dtype", "float32", "--device",
               "cpu", *arguments)
    assert done.code == 0, done.err
    return {name: record["sha256"] for name, record in results(folder / "out").items()}


def test_rows_survive_a_node_and_sound_as_on_one_machine(nodes, pair, tmp_path, monkeypatch):
    made, second = nodes
    expected = run(pair, tmp_path / "one")
    assert len(expected) == 60
    killed = []

    def killing(rows, crew):
        for count, outcome in enumerate(outcomes(rows, crew), 1):
            yield outcome
            if count == 30:
                assert crew.size == 2
                made.remove_node(second, allow_graceful=False)
                killed.append(count)
    monkeypatch.setattr("tts_cli.batch.run.outcomes", killing)
    assert run(pair, tmp_path / "many", "--ray", made.address) == expected and killed
    for name, digest in expected.items():
        assert file_sha256(tmp_path / "many" / "out" / f"{name}.wav") == digest


def test_workers_write_to_a_url(nodes, pair, tmp_path):
    shared = tmp_path / "shared"
    run(pair, tmp_path / "url", "--ray", nodes[0].address, "--audio-to", f"file://{shared}", "--workers", "1")
    record = json.loads((tmp_path / "url" / "out" / "results.jsonl").read_text().splitlines()[0])
    assert record["file"] == f"file://{shared}/{record['id']}.wav"
    assert sorted(path.name for path in shared.iterdir()) == sorted(f"{row['id']}.wav" for row in ROWS)
    assert not list((tmp_path / "url" / "out").glob("*.wav"))


def test_a_model_that_the_machines_do_not_have_ends_the_run(nodes, tmp_path):
    choice = ModelChoice((str(tmp_path / "gone.gguf"), None), "cpu", "float32", 1, None)
    batch_cluster.connect(nodes[0].address)
    with (batch_cluster.Cluster(Setup(choice, None), 1, batch_cluster.Share()) as crew,
          pytest.raises(TtsError, match="gone.gguf")):
        list(outcomes([object()], crew))


def test_addresses_that_are_refused(pair, tmp_path):
    done = tts("batch", manifest(tmp_path, ROWS), "-o", tmp_path / "out", "-m", pair[0], "--ray", "nowhere")
    assert done.code == 2 and "nowhere" in done.error


def test_a_worker_has_room_on_one_machine_or_none(monkeypatch):
    def machine(cpus, gpus=0.0, alive=True):
        return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}
    monkeypatch.setattr(ray, "nodes", lambda: [machine(3.0, 1.0), machine(3.0), machine(9.0, alive=False)])
    assert batch_cluster.room(batch_cluster.Share(2.0)) == 2  # and not three of six CPUs
    assert batch_cluster.room(batch_cluster.Share(0.1, 0.25)) == 4
    for share in (batch_cluster.Share(4.0), batch_cluster.Share(1.0, 2.0)):
        with pytest.raises(UsageError, match="--workers N to wait"):
            batch_cluster.room(share)
