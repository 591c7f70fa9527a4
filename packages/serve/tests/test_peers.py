"""Third-party clients in a separate environment: generated code, probes, tritonclient."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from sparring_serve import ShardPosition, ShardReplicas
from sparring_serve.testing.front_ends import ITEM, Folder, open_front_end

from .conftest import NATIVE

PYTHON = os.environ.get("SPARRING_SERVE_PEERS_PYTHON")
TENSORFLOW_PYTHON = os.environ.get("SPARRING_SERVE_TENSORFLOW_PYTHON")
PEERS = Path(__file__).parent / "peers"

# None of our packages except the installed ones.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@contextmanager
def served_here(folder: Folder, kind: str = "python") -> Iterator[str]:
    folder.publish(1, tables=[ITEM])
    position = ShardPosition(ShardReplicas((("a:1", "b:1"),), number=7))
    with open_front_end(kind, folder, position) as server:
        yield server.address


@contextmanager
def served_with_tensorflow(_: Folder) -> Iterator[str]:
    """The same from an environment with TensorFlow 2.16 and the protobuf that it pins."""
    if TENSORFLOW_PYTHON is None:
        pytest.skip(
            "SPARRING_SERVE_TENSORFLOW_PYTHON names no Python with TensorFlow 2.16 and sparring-serve; "
            "nox -s serving_peers makes one"
        )
    command = [TENSORFLOW_PYTHON, PEERS / "tensorflow_server.py"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as serving:
        assert serving.stdin is not None
        assert serving.stdout is not None
        started = json.loads(serving.stdout.readline())
        assert started["tensorflow"].startswith("2.16.")
        assert started["protobuf"].startswith("4.")
        yield started["address"]
        serving.stdin.close()
        assert serving.wait(timeout=60) == 0


@pytest.mark.skipif(
    PYTHON is None,
    reason="SPARRING_SERVE_PEERS_PYTHON names no Python with grpcio-tools, grpcio-health-checking and "
    "tritonclient[grpc]; nox -s serving_peers makes one",
)
@pytest.mark.parametrize(
    "served",
    [
        served_here,
        pytest.param(partial(served_here, kind="native"), marks=NATIVE.marks, id="native"),
        served_with_tensorflow,
    ],
)
def test_generated_code_health_probes_and_tritonclient_work_with_the_service(
    served: Callable[[Folder], AbstractContextManager[str]], tmp_path: Path
) -> None:
    with (
        served(Folder(tmp_path)) as address,
        as_file(files("sparring_serve.wire") / "lookup.proto") as proto,
    ):
        ran = subprocess.run(
            [str(PYTHON), str(PEERS / "generated_client.py"), address, str(proto)],
            capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    version = found["refreshed"][0]
    assert re.fullmatch("[0-9a-f]{32}", version)
    assert found.pop("age_seconds") >= 0
    assert found == {
        "rows": [[1, 7, -7, 0.5], [0, 0, 0, 0], [1, 99, -99, 0.5], [0, 0, 0, 0]],
        "found": [True, False, True, False],
        "version": [1, version, version],
        "tables": [["item", 4, "float32", 100]],
        "shards": [["a:1", "b:1"]],
        "limits": [1_000_000, 64 << 20, 10.0],
        "is_ready": True,
        "refreshed": [version, False],
        "refused": "NOT_FOUND",
        "health": 1,
        "triton": [[1, 7, -7, 0.5], [True, False, True, False]],
        "triton_rejects": ["StatusCode.INVALID_ARGUMENT"] * 5,
        "metadata": ["rows", "found"],
        "server": "sparring",
    }
