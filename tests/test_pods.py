"""Runs the manifests in ``configs/kubernetes`` as processes in network namespaces; see `pods`.

The file is long because all tests use the same network of pods, which takes seconds to start.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import latest_snapshot, scan_rows
from sparring_cli.application import main
from sparring_testing.fixtures.runs import snapshot_contents
from sparring_testing.processes.certificates import make_certificate
from sparring_testing.processes.waiting import wait_until

from .manifests import FOLDER, filled_secrets, find_manifest, manifests, pod_of
from .pods import Cluster, Pod, why_no_pods

pytestmark = [
    pytest.mark.skipif(why_no_pods() is not None, reason=f"no pods here: {why_no_pods()}"),
    # Several processes that each load a framework.
    pytest.mark.alone,
]

SMALL = ("data.samples=40000", "data.test_samples=500")


def template_of(kind: str, name: str) -> dict[str, Any]:
    return pod_of(find_manifest(kind, name).body) or {}


ADDED_HOSTS = {
    "serve": ["serve-c-1.serve", "serve-c-2.serve"],
    "parameters": ["parameters-3.parameters"],
}
"""Names of replicas and shards that tests add, which a user would add to the Certificate first."""


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Creates the Secrets that cert-manager would create from the Certificates of the manifests."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = make_certificate(folder, "authority", hosts="")
    made = {}
    for each in manifests():
        if each.kind == "Certificate" and not each.body["spec"].get("isCA"):
            hosts = [*each.body["spec"]["dnsNames"], *ADDED_HOSTS.get(each.name, ())]
            names = ",".join(f"DNS:{host}" for host in hosts)
            own = make_certificate(
                folder, each.name, authority, names, "extendedKeyUsage=serverAuth"
            )
            files = {"tls.crt": own, "tls.key": own.with_suffix(".key"), "ca.crt": authority}
            made[each.body["spec"]["secretName"]] = {
                name: path.read_text() for name, path in files.items()
            }
    return made


@pytest.fixture
def cluster(tmp_path: Path, certificates: dict[str, dict[str, str]]) -> Iterator[Cluster]:
    maps = {each.name: each.body["data"] for each in manifests() if each.kind == "ConfigMap"}
    tmp_path.chmod(0o755)
    with Cluster(tmp_path, maps, {**filled_secrets(), **certificates}) as made:
        yield made


# -- serving --------------------------------------------------------------------------


def start_server(cluster: Cluster, replica: str, shard: int) -> Pod:
    labels = {"apps.kubernetes.io/pod-index": str(shard)}
    # A third replica is a copy of the second with a different number.
    template = template_of("StatefulSet", f"serve-{min(replica, 'b')}")
    number = "abc".index(replica) + 1
    template = with_arguments(
        template, {"--replica=2": f"--replica={number}"} if number > 2 else {}
    )
    return cluster.start(template, f"serve-{replica}-{shard}", "serve", labels=labels)


def with_arguments(template: dict[str, Any], other: dict[str, str]) -> dict[str, Any]:
    """Returns a template with some arguments replaced."""
    (container,) = template["spec"]["containers"]
    args = [other.get(each, each) for each in container["args"]]
    return {**template, "spec": {**template["spec"], "containers": [{**container, "args": args}]}}


def publish_all(cluster: Cluster) -> None:
    publisher = cluster.start(template_of("Deployment", "publisher"), "publisher", "none")
    served = cluster.data / "served/quickstart"
    wait_until(lambda: any(served.glob("step-*")), 60, lambda: publisher.log)
    assert publisher.terminate(60) == 0, publisher.log


def probe_of(pod: str, kind: str) -> dict[str, Any]:
    (container,) = template_of("StatefulSet", pod)["spec"]["containers"]
    return dict(container[kind])


CLIENT = """
import json, sys, time
import numpy as np
from sparring_serve import LookupClient
table, ids = sys.argv[1], np.array(json.loads(sys.argv[2]), np.int64)
with LookupClient.from_config("/etc/sparring/config/serving.yaml") as client:
    for _ in range(int(sys.argv[3])):
        answer = client.pull({table: ids}, deadline_seconds=5)
        assert answer.found[table].all()
        print(json.dumps(answer.rows[table].tolist()), flush=True)
        time.sleep(0.05)
"""


def start_program(
    cluster: Cluster, job: str, *arguments: str, secret: dict[str, Any] | None = None
) -> Pod:
    """Starts the pod of a Job with a program of Python, and possibly with the token of another Secret."""
    template = template_of("Job", job)
    (container,) = template["spec"]["containers"]
    own = {**container, "command": ["python3", "-c", *arguments], "args": [], "env": []}
    volumes = [
        {**each, "secret": secret or each["secret"]} if each["name"] == "token" else each
        for each in template["spec"]["volumes"]
    ]
    spec = {**template["spec"], "containers": [own], "volumes": volumes}
    return cluster.start({**template, "spec": spec}, f"{job}-{next(_NUMBERS)}", "none")


_NUMBERS = itertools.count()


def rows_told(pod: Pod) -> list[np.ndarray]:
    lines = pod.log.splitlines()
    return [np.array(json.loads(line), np.float32) for line in lines if line.startswith("[[")]


@pytest.fixture
def trained(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], np.ndarray]:
    """Keys of the table cat_3 on the volume of the cluster, and their embeddings."""
    monkeypatch.chdir(cluster.data)
    given = ["snapshots.url=runs/quickstart", "report.path=null", "training.steps=6", *SMALL]
    assert main(["train", str(FOLDER.parent / "quickstart.yaml"), *given]) == 0
    for each in (cluster.data, *cluster.data.rglob("*")):
        os.chown(each, 65532, 65532)  # as fsGroup does
    snapshot = latest_snapshot("runs/quickstart")
    assert snapshot is not None
    keys, rows = [], []
    for chunk in scan_rows(snapshot, "cat_3", range(4096)):
        keys += chunk.keys.tolist()
        rows.append(chunk.rows[:, :16])
    return keys[:500], np.concatenate(rows)[:500]


@pytest.mark.slow  # starts four servers, a publisher and clients
def test_a_service_is_published_probed_queried_and_outlives_its_pods(
    cluster: Cluster, trained: tuple[list[int], np.ndarray]
) -> None:
    pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    keys, rows = trained
    publish_all(cluster)
    pods = {
        (replica, shard): start_server(cluster, replica, shard)
        for replica in "ab"
        for shard in (1, 2)
    }
    for kind in ("startupProbe", "livenessProbe"):
        assert cluster.probe(pods["a", 1], probe_of("serve-a", kind), 60), pods["a", 1].log
    for pod in pods.values():
        assert cluster.probe(pod, probe_of("serve-a", "readinessProbe"), 60), pod.log

    # The unchanged Job of client.yaml.
    asking = with_arguments(template_of("Job", "client"), {"7": str(keys[0])})
    asked = cluster.start(asking, "client", "none")
    assert asked.process.wait(60) == 0, asked.log

    client = start_program(cluster, "client", CLIENT, "cat_3", json.dumps(keys), "200")
    wait_until(lambda: len(rows_told(client)) > 5, 60, lambda: client.log)
    # A replica of each shard is removed, one by one; its replacement has a different address.
    cluster.remove(pods["a", 1])
    again = start_server(cluster, "a", 1)
    assert again.address != pods["a", 1].address
    assert cluster.probe(again, probe_of("serve-a", "readinessProbe"), 60), again.log
    assert pods["b", 2].terminate(30) == 0, pods["b", 2].log
    assert "draining" in pods["b", 2].log
    assert client.process.wait(60) == 0, client.log
    told = rows_told(client)
    assert len(told) == 200
    assert all(np.array_equal(each, rows) for each in told)

    # Only the restarted pod of shard 1 is left.
    cluster.remove(pods["b", 1])
    last = start_program(cluster, "client", CLIENT, "cat_3", json.dumps(keys), "3")
    assert last.process.wait(60) == 0, last.log
    assert all(np.array_equal(each, rows) for each in rows_told(last))
    assert len(rows_told(last)) == 3


@pytest.mark.long
def test_a_replica_is_added_and_servers_are_replaced_while_all_answers_are_right(
    cluster: Cluster, trained: tuple[list[int], np.ndarray]
) -> None:
    pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    keys, rows = trained
    publish_all(cluster)

    def start_ready(replica: str, shard: int) -> Pod:
        pod = start_server(cluster, replica, shard)
        assert cluster.probe(pod, probe_of("serve-a", "readinessProbe"), 60), pod.log
        return pod

    pods = {(replica, shard): start_ready(replica, shard) for replica in "ab" for shard in (1, 2)}
    client = start_program(cluster, "client", CLIENT, "cat_3", json.dumps(keys), "100_000")
    wait_until(lambda: len(rows_told(client)) > 5, 60, lambda: client.log)

    text = (
        find_manifest("ConfigMap", "serve")
        .body["data"]["serving.yaml"]
        .replace("map_number: 1", "map_number: 2")
    )
    for shard in (1, 2):
        last = f'"serve-b-{shard}.serve:7433"'
        text = text.replace(last, f'{last}, "serve-c-{shard}.serve:7433"')
    cluster.apply("serve", "serving.yaml", text)
    pods |= {("c", shard): start_ready("c", shard) for shard in (1, 2)}
    # Like a StatefulSet: the last pod first, each when the previous one is ready.
    for replica in "ab":
        for shard in (2, 1):
            assert pods[replica, shard].terminate(30) == 0, pods[replica, shard].log
            cluster.remove(pods[replica, shard])
            pods[replica, shard] = start_ready(replica, shard)
    told = len(rows_told(client))
    wait_until(lambda: len(rows_told(client)) > told + 5, 60, lambda: client.log)
    cluster.remove(client)
    assert "Error" not in client.log
    assert all(np.array_equal(each, rows) for each in rows_told(client))

    for replica in "ab":
        for shard in (1, 2):
            cluster.remove(pods[replica, shard])
    last_client = start_program(cluster, "client", CLIENT, "cat_3", json.dumps(keys), "3")
    assert last_client.process.wait(60) == 0, last_client.log
    assert all(np.array_equal(each, rows) for each in rows_told(last_client))
    assert len(rows_told(last_client)) == 3


def test_a_probe_fails_without_a_server(cluster: Cluster) -> None:
    server = start_server(cluster, "a", 1)
    assert not cluster.probe(server, probe_of("serve-a", "readinessProbe"), 0)
    # Nothing is published yet: it ends, and Kubernetes restarts it.
    assert server.process.wait(60) != 0
    assert "sparring publish" in server.log


# -- the parameter service ------------------------------------------------------------

ADMIN = {"secretName": "parameters-tokens", "items": [{"key": "token", "path": "token"}]}
TRAINER = """
import json, sys
import numpy as np
from sparring_serve import ParameterClient
ids = np.arange(1000)
with ParameterClient.from_config("/etc/sparring/config/parameters.yaml") as client:
    if sys.argv[1] == "push":
        gradients = np.outer(ids, np.ones(33)).astype(np.float32)
        client.push({"item": (ids, gradients)}, wait="applied", deadline_seconds=20)
        client.save(deadline_seconds=60)
    answer = client.pull({"item": ids}, deadline_seconds=5)
    print(json.dumps([answer.found["item"].tolist(), answer.rows["item"].tolist()]))
"""


@pytest.mark.long  # test_service_demo.py has the first half without namespaces
def test_a_learning_shard_restarts_from_the_newest_snapshot_also_with_more_shards(
    cluster: Cluster,
) -> None:
    pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    template = template_of("StatefulSet", "parameters")
    (container,) = template["spec"]["containers"]

    def start(shard: int, num_shards: int = 2) -> Pod:
        labels = {"apps.kubernetes.io/pod-index": str(shard)}
        given = with_arguments(template, {"--shard=$(SHARD)/2": f"--shard=$(SHARD)/{num_shards}"})
        return cluster.start(given, f"parameters-{shard}", "parameters", labels=labels)

    def answer_to(does: str) -> tuple[list[bool], list[list[float]]]:
        trainer = start_program(
            cluster, "trainer", TRAINER, does, secret=ADMIN if does == "push" else None
        )
        assert trainer.process.wait(90) == 0, trainer.log
        found, rows = json.loads(trainer.log.splitlines()[-1])
        return found, rows

    shards = [start(1), start(2)]
    for pod in shards:
        assert cluster.probe(pod, container["readinessProbe"], 60), pod.log
    found, pushed = answer_to("push")
    assert all(found)
    cluster.remove(shards[1])
    again = start(2)
    assert cluster.probe(again, container["startupProbe"], 60), again.log
    assert again.address != shards[1].address
    assert "began with" in again.log
    assert answer_to("pull") == (found, pushed)

    # More shards: all pods end, and the new ones start from the snapshot.
    for pod in (shards[0], again):
        assert pod.terminate(90) == 0, pod.log
        cluster.remove(pod)
    second = '  - ["parameters-2.parameters:7433"]\n'
    text = (
        find_manifest("ConfigMap", "parameters")
        .body["data"]["parameters.yaml"]
        .replace("map_number: 1", "map_number: 2")
    )
    text = text.replace(second, second + second.replace("-2", "-3"))
    cluster.apply("parameters", "parameters.yaml", text)
    for pod in [start(shard, num_shards=3) for shard in (1, 2, 3)]:
        assert cluster.probe(pod, container["startupProbe"], 60), pod.log
        assert "began with" in pod.log
    assert answer_to("pull") == (found, pushed)


@pytest.mark.long
def test_the_job_of_a_trainer_trains_tables_of_a_service(cluster: Cluster) -> None:
    pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    template = template_of("StatefulSet", "parameters")
    (container,) = template["spec"]["containers"]
    shards = [
        cluster.start(
            template,
            f"parameters-{shard}",
            "parameters",
            labels={"apps.kubernetes.io/pod-index": str(shard)},
        )
        for shard in (1, 2)
    ]
    for pod in shards:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert cluster.probe(pod, container[kind], 60), pod.log
    ratings = [f"{row % 50},{row % 31},{row % 5 + 0.5},{row}" for row in range(2000)]
    (cluster.data / "ratings.csv").write_text(
        "\n".join(["userId,movieId,rating,timestamp", *ratings])
    )
    trainer = cluster.start(template_of("Job", "trainer"), "trainer", "none")
    assert trainer.process.wait(90) == 0, trainer.log
    assert "rows of user" in trainer.log
    for pod in shards:
        assert pod.terminate(90) == 0, pod.log


# -- training -------------------------------------------------------------------------

TRAINING = ("snapshots.every_steps=5", "training.epochs=2", "report.path=null", *SMALL)
STEPS = 40


def rows_of(folder: Path) -> dict[int, np.ndarray]:
    """Returns the rows of the table cat_3 in the newest snapshot of a run, which must be the last."""
    found = snapshot_contents(folder)
    assert found["step"] == STEPS
    return {key: np.frombuffer(row, np.float32) for key, (row, _) in found["cat_3"].items()}


@pytest.mark.long
def test_two_nodes_train_and_a_lost_one_resumes_from_the_newest_snapshot(
    cluster: Cluster,
) -> None:
    pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")

    def start(index: int, url: str = "runs/quickstart") -> Pod:
        more = [*TRAINING, f"snapshots.url={url}"]
        return cluster.start(template_of("Job", "train"), f"train-{index}", "train", more=more)

    # The second pod first: it waits for the name of the other.
    second = start(1)
    time.sleep(2)
    first = start(0)
    run = cluster.data / "runs/quickstart"
    wait_until(lambda: len(list(run.glob("step-*"))) > 1, 120, lambda: first.log)
    cluster.remove(second)
    again = start(1)
    assert again.address != second.address
    for pod in (again, first):
        assert pod.process.wait(200) == 0, pod.log
    # The pod of the other node was not restarted, but its ranks were.
    assert "find out why rank" in first.log
    assert "resumed from /data/runs/quickstart/step-" in first.log + again.log

    for pod in [start(index, "runs/whole") for index in (0, 1)]:
        assert pod.process.wait(200) == 0, pod.log
    found, expected = rows_of(run), rows_of(cluster.data / "runs/whole")
    assert found.keys() == expected.keys()
    assert all(np.allclose(found[key], expected[key], rtol=1e-5, atol=1e-7) for key in expected)


@pytest.mark.long
def test_the_job_succeeds_although_the_rendezvous_node_is_lost(cluster: Cluster) -> None:
    pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")

    def start(index: int) -> Pod:
        return cluster.start(template_of("Job", "train"), f"train-{index}", "train", more=TRAINING)

    pods = [start(0), start(1)]
    run = cluster.data / "runs/quickstart"
    wait_until(lambda: len(list(run.glob("step-*"))) > 1, 200, lambda: pods[0].log)
    cluster.remove(pods[0])
    ended = [pods[0]]
    pods[0] = start(0)
    end = time.monotonic() + 400
    # Like the Job's controller: a failed pod is replaced.
    while any(pod.process.poll() != 0 for pod in pods):
        assert time.monotonic() < end, "".join(pod.log for pod in (*ended, *pods))
        for index, pod in enumerate(pods):
            if pod.process.poll() not in (None, 0):
                ended.append(pod)
                pods[index] = start(index)
        time.sleep(0.2)
    # Without its rendezvous the other pod ends too; more restarts would be an endless loop.
    assert len(ended) <= 4
    assert rows_of(run)


@pytest.mark.long
def test_a_train_job_trains_with_the_variables_of_the_trainer(cluster: Cluster) -> None:
    pytest.importorskip("sparring_torch", reason="sparring-torch is not installed")
    pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    template = template_of("TrainingRuntime", "sparring")
    (job,) = [each for each in manifests() if each.kind == "TrainJob"]
    trainer = job.body["spec"]["trainer"]
    (container,) = template["spec"]["containers"]
    own = {**container, "command": trainer["command"], "args": trainer["args"]}
    template = {**template, "spec": {**template["spec"], "containers": [own]}}
    names = [f"{job.name}-node-0-{index}" for index in range(trainer["numNodes"])]
    pods = [
        cluster.start(
            template,
            name,
            job.name,
            more=["training.steps=6", "report.path=null", *SMALL],
            env={
                "PET_NNODES": str(trainer["numNodes"]),
                "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                "PET_NODE_RANK": str(index),
                "PET_MASTER_ADDR": f"{names[0]}.{job.name}",
                "PET_MASTER_PORT": "29500",
            },
        )
        for index, name in enumerate(names)
    ]
    for pod in pods:
        assert pod.process.wait(120) == 0, pod.log
    assert latest_snapshot(str(cluster.data / "runs/quickstart")) is not None


# -- Redis, and the pods themselves ---------------------------------------------------


def test_redis_finds_its_rows_again(cluster: Cluster) -> None:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.skip("redis-server is not installed")
    template = template_of("StatefulSet", "redis")
    (container,) = template["spec"]["containers"]
    for expected in ("(nil)", "kept"):
        pod = cluster.start(template, "redis-0", "redis")
        for kind in ("readinessProbe", "livenessProbe"):
            assert cluster.probe(pod, container[kind], 20), pod.log
        command = ["redis-cli", "--tls", "--cacert", "/etc/sparring/tls/ca.crt"]
        found = cluster.run_in(pod, *command, "--no-raw", "get", "row")
        assert found.strip('"\n') == expected
        assert cluster.run_in(pod, *command, "set", "row", "kept") == "OK\n"
        # Without the password, or in plain text, there is no reply.
        bare = "REDISCLI_AUTH= redis-cli --tls --cacert /etc/sparring/tls/ca.crt get row"
        assert "NOAUTH" in cluster.run_in(pod, "sh", "-c", bare)
        assert cluster.run_in(pod, "sh", "-c", "timeout 5 redis-cli ping 2>&1 || true") != "PONG\n"
        cluster.remove(pod)


def test_a_pod_has_exactly_the_contents_of_its_manifest(cluster: Cluster) -> None:
    template = template_of("StatefulSet", "serve-a")
    (container,) = template["spec"]["containers"]
    program = (
        "wc -l < /etc/sparring/tokens/tokens; ls /etc/sparring/tls; touch /tmp/written && echo tmp; "
        "touch /data/written || echo no data; touch /root-written || echo no root; "
        "grep CapEff /proc/self/status; hostname; ls /sys/class/net"
    )
    own = {**container, "command": ["sh", "-c"], "args": [program], "env": []}
    pod = cluster.start(
        {**template, "spec": {**template["spec"], "containers": [own]}}, "serve-a-1", "serve"
    )
    assert pod.process.wait(20) == 0
    said = [line for line in pod.log.splitlines() if not line.startswith("touch:")]
    assert said == [
        "2", "ca.crt", "tls.crt", "tls.key", "tmp", "no data", "no root",
        "CapEff:\t0000000000000000", "serve-a-1", "eth0", "lo",
    ]  # fmt: skip
