"""A parameter service is restored from copies of its snapshots and push logs, on any path and host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring_serve import (
    ClientConfig,
    ParameterClient,
    ServingConfig,
    open_parameter_server,
)
from sparring_serve.parameters.push_log_files import MAGIC, RecordKind, head_of, read_records
from sparring_serve.server.lookup_server import LookupServer
from sparring_testing.processes.waiting import free_ports

TABLES = {"item": {"dim": 2, "update_method": "sgd", "hyper": {"lr": 1.0}, "initializer": "zeros"}}
IDS = np.arange(40)
PAGE = Path(__file__).parents[4] / "docs/how-to/train-through-a-service.md"


class Service:
    """All shards in this process, over gRPC."""

    def __init__(self, folder: str, host: str, num_shards: int = 2) -> None:
        addresses = [[f"{host}:{port}"] for port in free_ports(num_shards)]
        given = {"tables": TABLES, "folders": [str(Path(folder).absolute())]}
        self.config = ServingConfig.model_validate({"shards": addresses, "parameters": given})
        self.servers: list[LookupServer] = []
        with ExitStack() as closing:
            for shard in range(num_shards):
                self.servers.append(open_parameter_server(self.config, shard=shard))
                closing.callback(self.servers[-1].close)
            self._closing = closing.pop_all()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def client(self) -> ParameterClient:
        return ParameterClient(self.config.shard_map, ClientConfig(deadline_seconds=9))

    def push(self, times: int) -> None:
        with self.client() as client:
            for _ in range(times):
                client.push({"item": (IDS, -np.ones((len(IDS), 2), np.float32))}, wait="applied")

    def save(self, name: str) -> None:
        with self.client() as client:
            client.save(name)

    def check(self, pushes: int) -> None:
        """Checks that all rows have these pushes, none is reported as lost, and saves are accepted."""
        with self.client() as client:
            found = client.pull({"item": IDS}).rows["item"]
            assert np.unique(found).tolist() == [pushes]
        assert [each.changes.shard.lost for each in self.servers] == ["", ""]
        self.save(f"checked-{self.servers[0].port}-{pushes}")


def copy(source: str, target: str) -> None:
    for end in ("", ".push-log"):
        shutil.copytree(f"{source}{end}", f"{target}{end}")


def blocks_of_the_page() -> str:
    """Returns the commands that copy files, from the page."""
    section = PAGE.read_text().split("\n## Backup and restore\n")[1].split("\n## ")[0]
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", section, re.M | re.S))
    return "\n".join(line for line in blocks.splitlines() if line.startswith("cp "))


@pytest.mark.slow  # 1,000 pushes
def test_the_page_restores_all_acknowledged_pushes() -> None:
    with Service("parameters", "127.0.0.1") as service:
        service.push(600)
        service.save("good")
        service.push(400)
    for name in ("backup", "restored"):
        Path(name).mkdir()
    commands = blocks_of_the_page()
    assert commands.count("cp ") == 2
    subprocess.run(["bash", "-ec", commands], check=True)
    for name in ("parameters", "parameters.push-log", "backup"):
        shutil.rmtree(name)
    with Service("restored/parameters", "localhost") as service:
        service.check(1000)
        service.push(1)
        service.check(1001)


def test_a_copy_of_killed_servers_is_complete() -> None:
    Path("a").mkdir()
    with Service("a", "127.0.0.1") as service:
        service.push(3)
        copy("a", "before-a-save")
        service.save("good")
        service.push(2)
        copy("a", "b")
        with service.client() as client:
            client.load("good")
        service.push(4)
        copy("a", "loaded")
        service.save("newer")
        with service.client() as client:
            client.load("good")
        service.push(5)
        copy("a", "older")
    for folder, pushes in (("before-a-save", 3), ("b", 5), ("loaded", 7), ("older", 8)):
        with Service(folder, "localhost") as service:
            service.check(pushes)
        copy(folder, f"{folder}-again")
        with Service(f"{folder}-again", "127.0.0.1") as service:
            service.check(pushes)


def test_the_log_of_another_save_with_the_same_name_is_not_replayed() -> None:
    for folder in ("a", "b"):
        with Service(folder, "127.0.0.1") as service:
            service.push(2 if folder == "a" else 5)
            service.save("good")
            service.push(1)
    shutil.rmtree("a")
    shutil.copytree("b", "a")  # the path is the same
    with Service("a", "127.0.0.1") as service:
        assert "the log of 1 pushes follows" in service.servers[0].changes.shard.lost


def test_a_log_of_an_older_release_is_found_by_its_url() -> None:
    with Service("a", "127.0.0.1") as service:
        service.push(2)
        service.save("good")
        service.push(1)
        copy("a", "copy")
    shutil.rmtree("a.push-log")
    shutil.copytree("copy.push-log", "a.push-log")
    for path in Path("a.push-log").glob("*.log"):
        content = MAGIC
        for kind, payload in read_records(path):
            if kind == RecordKind.HEADER:
                header: dict[str, Any] = json.loads(payload)
                del header["base_save"], header["base_hash"]
                written = json.dumps(header).encode()
            else:
                written = payload
            content += head_of(RecordKind(kind), written) + written
        path.write_bytes(content)
    with Service("a", "127.0.0.1") as service:
        service.check(3)
