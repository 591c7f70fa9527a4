"""Both servers of the role inference, with one interface: the one in Python, and the native process."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring_serve import ServerConfig, ServingConfig, ShardPosition, ShardReplicas, open_server
from sparring_serve.server.native_front_end import EXECUTABLE, encode_settings
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PullRequest, TableIds

ITEM, USER = TableConfig("item", 4, seed=3), TableConfig("user", 3)
KEYS = np.arange(100, dtype=np.int64)
ONE_SHARD = ShardReplicas((("127.0.0.1:1",),))


class Folder:
    """A folder of serving snapshots. A row of step s of `item` is (s, key, -key, 0.5)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.served = str(path / "served")

    def publish(
        self,
        step: int,
        *,
        base: int | None = None,
        dtype: str = "fp32",
        tables: Sequence[TableConfig] = (ITEM, USER),
    ) -> Path:
        run = f"{self.path}/run/step-{step}"
        over = None if base is None else f"{self.path}/run/step-{base}"
        writer = SnapshotWriter(run, step=step, base=over)
        keys = KEYS if base is None else KEYS[:50]
        for table in tables:
            rows = np.full((len(keys), table.dim), 0.5, np.float32)
            rows[:, 0], rows[:, 1], rows[:, 2] = step, keys, -keys
            chunk = ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))
            writer.write_table(TableDescription.of(table), [chunk])
        writer.finish()
        writer.commit()
        written = f"{self.served}/step-{step}"
        over = None if base is None else f"{self.served}/step-{base}"
        sparring_packed.write(run, written, base=over, quantize={"item": dtype})
        return Path(written)


def make_config(folder: Folder, **server: Any) -> ServingConfig:
    options = {"poll_seconds": 3600, "metrics_port": 0, "health_port": 0, **server}
    return ServingConfig(snapshots=folder.served, server=ServerConfig(**options))


class PythonFrontEnd:
    """The server in Python, in this process."""

    def __init__(self, folder: Folder, position: ShardPosition, **server: Any) -> None:
        config = make_config(folder, **server)
        config = config.model_copy(update={"shards": position.shards.shards})
        self._server = open_server(config, shard=position.shard, address="127.0.0.1:0")
        self.address = self._server.address
        assert self._server.health_port is not None
        assert self._server.exporter is not None
        self.health_address = f"127.0.0.1:{self._server.health_port.port}"
        self.metrics_address = f"127.0.0.1:{self._server.exporter.port}"

    def close(self) -> None:
        self._server.close()


class NativeFrontEnd:
    """The native server, a process."""

    def __init__(self, folder: Folder, position: ShardPosition, **server: Any) -> None:
        folder.path.mkdir(exist_ok=True)
        settings = folder.path / f"settings-{id(self)}"
        config = make_config(folder, **server)
        settings.write_text(encode_settings(config, position, "127.0.0.1:0", "info"))
        self._process = subprocess.Popen(
            [os.environ.get("SPARRING_SERVE_TEST_EXECUTABLE", EXECUTABLE), settings], stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        found: dict[str, str] = {}
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            for what in ("metrics are", "health checks are", "ready"):
                if match := re.search(rf"{what} on (\S+?)(: |$)", line):
                    found[what] = match[1]
            if "ready" in found:
                break
        else:
            code = self._process.wait()
            raise AssertionError(f"exit code {code}: {''.join(self.lines)}")
        self.address, self.health_address = found["ready"], found["health checks are"]
        self.metrics_address = found["metrics are"]
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(self._process.stderr)
        self._process.stderr.close()

    def close(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0, "".join(self.lines)
        self._reading.join()


FrontEnd = PythonFrontEnd | NativeFrontEnd


def open_front_end(
    kind: str, folder: Folder, position: ShardPosition | None = None, **server: Any
) -> FrontEnd:
    """Starts the server `python` or `native` on free ports."""
    position = position or ShardPosition(ONE_SHARD)
    made: FrontEnd = (PythonFrontEnd if kind == "python" else NativeFrontEnd)(
        folder, position, **server
    )
    return made


def read_metrics(server: FrontEnd) -> dict[str, float]:
    """Returns the samples of the metrics endpoint: name with labels → value."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{server.metrics_address}/metrics", timeout=20) as page:
        lines = page.read().decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name.removeprefix("sparring_serving_"): float(value) for name, _, value in samples}


Reply = tuple[str, str, Any, bytes]


def call(address: str, method: str, request: Any = b"", **options: Any) -> Reply:
    """Returns the status, its message, the attached shard map, and the reply."""
    content = request if isinstance(request, bytes) else encode(request)
    with grpc.insecure_channel(
        address, options=(("grpc.max_receive_message_length", -1),)
    ) as channel:
        made = channel.unary_unary(f"/{method}").future(content, **{"timeout": 9, **options})
        error = made.exception()
        trailing = dict(made.trailing_metadata() or ())
        attached = trailing.get("sparring-shard-map-bin")
        return made.code().name, made.details() or "", attached, b"" if error else made.result()


def pull(*tables: tuple[str, Any], **fields: Any) -> PullRequest:
    asked = tuple(TableIds(name, np.array(ids, np.int64).tobytes()) for name, ids in tables)
    return PullRequest(asked, **fields)
