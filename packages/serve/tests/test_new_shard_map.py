"""Clients go over to servers with a newer shard map while the old servers drain."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import numpy as np
import yaml

from sparring.errors import SparringError
from sparring_serve import (
    LookupClient,
    LookupServer,
    ServingConfig,
    open_server,
    read_serving_config,
)
from sparring_serve.testing.front_ends import KEYS, Folder


def _open(path: Path, size: int) -> list[LookupServer]:
    config: ServingConfig = read_serving_config(path)
    return [open_server(config, shard=each) for each in range(size)]


def test_clients_go_over_to_more_shards_without_an_error(tmp_path: Path, folder: Folder) -> None:
    def write(name: str, addresses: list[str], number: int) -> Path:
        path = tmp_path / name
        path.with_suffix(".tmp").write_text(
            yaml.safe_dump(
                {
                    "snapshots": folder.served,
                    "map_number": number,
                    "shards": [[each] for each in addresses],
                    "client": {"consistency": "one_version", "deadline_seconds": 20.0},
                }
            )
        )
        return path.with_suffix(".tmp").rename(path)

    sockets = [socket.socket() for _ in range(5)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    clients = write("clients.yaml", addresses[:2], 1)
    old = _open(clients, 2)
    failures: list[str] = []
    stop = threading.Event()
    with LookupClient.from_config(clients) as client:

        def pull() -> None:
            while not stop.is_set():
                try:
                    found = client.pull({"item": KEYS})
                    if len(found.versions) != 1 or not found.found["item"].all():
                        failures.append(f"versions {found.versions}")
                except SparringError as error:
                    failures.append(str(error))

        thread = threading.Thread(target=pull)
        thread.start()
        new = _open(write("new.yaml", addresses[2:], 2), 3)
        folder.publish(2)  # both refresh while clients go over
        write("clients.yaml", addresses[2:], 2)
        end = time.monotonic() + 30
        while client._session.shards.num_shards == 2 and time.monotonic() < end:
            time.sleep(0.05)
        for each in old:
            each.close()
        np.testing.assert_array_equal(client.pull({"item": KEYS}).rows["item"][:, 1], KEYS)
        stop.set()
        thread.join()
        assert client._session.shards.num_shards == 3
    for each in new:
        each.close()
    assert failures == []
