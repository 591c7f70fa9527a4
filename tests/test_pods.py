"""Manifests of ``configs/kubernetes`` played by processes in network namespaces; see `pods`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import latest_snapshot, merged_chunks
from sparring.cli.application import main

from .manifests import FOLDER, manifests, pod_of
from .pods import Cluster, Pod, why_no_pods

pytestmark = [
    pytest.mark.skipif(why_no_pods() is not None, reason=f"no pods here: {why_no_pods()}"),
    # Several processes that each load a framework.
    pytest.mark.alone,
]

SMALL = ("data.samples=40000", "data.test_samples=500")
TOKEN = "0123456789abcdef0123"


def template_of(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if (each.kind, each.name) == (kind, name)]
    template = pod_of(found.body)
    assert template is not None
    return template


def wait_until(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    maps = {each.name: each.body["data"] for each in manifests() if each.kind == "ConfigMap"}
    tokens = {"tokens": f"pull {TOKEN}\n", "token": f"{TOKEN}\n"}
    tmp_path.chmod(0o755)
    with Cluster(tmp_path, maps, {"serve-tokens": tokens}) as made:
        yield made


# -- serving --------------------------------------------------------------------------


def start_server(cluster: Cluster, replica: str, shard: int) -> Pod:
    labels = {"apps.kubernetes.io/pod-index": str(shard)}
    template = template_of("StatefulSet", f"serve-{replica}")
    return cluster.start(template, f"serve-{replica}-{shard}", "serve", labels=labels)


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


def start_client(cluster: Cluster, table: str, ids: list[int], pulls: int) -> Pod:
    """A pod with the mounts of a server and a program of its own, as the head of serve.yaml says."""
    template = template_of("StatefulSet", "serve-a")
    (container,) = template["spec"]["containers"]
    command = ["python3", "-c", CLIENT, table, json.dumps(ids), str(pulls)]
    own = {**container, "command": command, "args": [], "env": []}
    spec = {**template["spec"], "containers": [own]}
    return cluster.start({**template, "spec": spec}, f"client-{pulls}", "none")


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
    for chunk in merged_chunks(snapshot, "cat_3", range(4096)):
        keys += chunk.keys.tolist()
        rows.append(chunk.rows[:, :16])
    return keys[:500], np.concatenate(rows)[:500]


def test_a_service_is_published_probed_asked_and_outlives_its_pods(
    cluster: Cluster, trained: tuple[list[int], np.ndarray]
) -> None:
    pytest.importorskip("sparring_serve", reason="sparring-serve is not installed")
    keys, rows = trained
    publisher = cluster.start(template_of("Deployment", "publisher"), "publisher", "none")
    served = cluster.data / "served/quickstart"
    wait_until(lambda: any(served.glob("step-*")), 60, publisher.log)
    assert publisher.terminate(60) == 0, publisher.log

    pods = {
        (replica, shard): start_server(cluster, replica, shard)
        for replica in "ab"
        for shard in (1, 2)
    }
    for pod in pods.values():
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert cluster.probe(pod, probe_of("serve-a", kind), 60), pod.log

    client = start_client(cluster, "cat_3", keys, 200)
    wait_until(lambda: len(rows_told(client)) > 5, 60, client.log)
    # A replica of each shard goes, one by one; what took its place has another address.
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

    # Of shard 1 only the pod that was started again is left.
    cluster.remove(pods["b", 1])
    last = start_client(cluster, "cat_3", keys, 3)
    assert last.process.wait(60) == 0, last.log
    assert all(np.array_equal(each, rows) for each in rows_told(last))
    assert len(rows_told(last)) == 3


def test_a_probe_fails_where_no_server_is(cluster: Cluster) -> None:
    server = start_server(cluster, "a", 1)
    assert not cluster.probe(server, probe_of("serve-a", "readinessProbe"), 0)
    # Nothing is published yet: it ends, and Kubernetes starts it again.
    assert server.process.wait(60) != 0
    assert "sparring publish" in server.log
