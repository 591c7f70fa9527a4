"""The clients of ``examples``, which need none of our packages, pull rows from a real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparring.adapter import initial_rows
from sparring.contracts import partition
from sparring_serve import ClientConfig, LookupClient, ShardPosition, ShardReplicas
from sparring_serve.testing.front_ends import ITEM
from sparring_testing.processes.compilers import compile_program

from .conftest import NATIVE, Serve

EXAMPLES = Path(__file__).parents[1] / "examples"
NODE = shutil.which("node")
LONG = ClientConfig(deadline_seconds=20)
IDS = [7, -1, 99, 0, 2**63 - 1, -(2**63)]
TOKEN = "0123456789abcdef-of-a-client"

COMMANDS = {
    "python": [sys.executable, str(EXAMPLES / "grpc_client.py")],
    "node": [str(NODE), str(EXAMPLES / "node_client.mjs")],
}


@pytest.fixture(scope="module")
def cxx_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in C++, compiled."""
    program = tmp_path_factory.mktemp("cxx") / "grpc_client"
    return compile_program(EXAMPLES / "grpc_client.cc", program, package="grpc++")


@pytest.fixture(params=[*COMMANDS, pytest.param("cxx", marks=pytest.mark.slow)])
def command(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "cxx":
        return [str(request.getfixturevalue("cxx_client"))]
    if request.param == "node" and NODE is None:
        pytest.skip("no node here; Debian and Ubuntu: apt-get install nodejs")
    return COMMANDS[request.param]


def run(command: list[str], *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        [*command, *arguments], env={**environment, "TOKEN": token},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "num_shards"),
    [("python", 1), ("python", 3), pytest.param(*NATIVE.values, 3, marks=NATIVE.marks)],
)
def test_a_client_of_the_examples_pulls_rows(
    command: list[str], serve: Serve, num_shards: int
) -> None:
    shards = ShardReplicas((("a:1",),) * num_shards)
    servers = [serve(ShardPosition(shards, each)) for each in range(num_shards)]
    addresses = ",".join(each.address for each in servers)
    ran = run(command, addresses, "item", *map(str, IDS))
    refused = run(command, addresses, "itm", "7")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    expected = initial_rows(np.array(IDS), ITEM)
    for place in (0, 2, 3):
        expected[place] = [1, IDS[place], -IDS[place], 0.5]
    assert np.array_equal(np.array(found["rows"], np.float32), expected)
    assert found["found"] == [True, False, True, True, False, False]
    with LookupClient([[each.address] for each in servers], LONG) as client:
        assert found["versions"] == [client.pull({"item": [7]}).versions[0].hash]
    assert found["partitions"] == partition(np.array(IDS)).tolist()
    assert found["shards"] == shards.shard_of(np.array(IDS)).tolist()
    assert num_shards == 1 or set(found["shards"]) == {0, 1, 2}
    assert refused.returncode == 1
    assert "status 5: " in refused.stderr
    assert "table 'itm'" in refused.stderr
    for text in (str(2**63), "7x", ""):
        wrong = run(command, addresses, "item", text)
        assert wrong.returncode != 0, (text, wrong.stdout)
        assert not wrong.stdout


@pytest.mark.parametrize("kind", ["python"])
def test_a_client_of_the_examples_sends_its_token(
    command: list[str], serve: Serve, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"pull {TOKEN}\n")
    tokens.chmod(0o600)
    server = serve(token_file=tokens)
    allowed = run(command, server.address, "item", "7", token=TOKEN)
    refused = run(command, server.address, "item", "7")
    assert allowed.returncode == 0, allowed.stderr
    assert json.loads(allowed.stdout)["found"] == [True]
    assert refused.returncode == 1
    assert "status 16: " in refused.stderr
