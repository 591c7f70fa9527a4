"""Both servers of the role inference, with one interface: the one in Python, and the native process."""

from __future__ import annotations

import logging
import os
import re
import resource
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring_serve.config import ServerConfig, ServingConfig
from sparring_serve.request_log import start_writer
from sparring_serve.server.lookup_server import LookupServer, open_server
from sparring_serve.server.native_front_end import EXECUTABLE, encode_settings
from sparring_serve.service import ShardPosition
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import SERVICE, PullRequest, RefreshReply, TableIds

__all__ = [
    "ITEM",
    "KEYS",
    "ONE_SHARD",
    "USER",
    "Folder",
    "FrontEnd",
    "NativeFrontEnd",
    "PythonFrontEnd",
    "Reply",
    "call",
    "make_config",
    "open_front_end",
    "pull",
    "read_metrics",
    "scrape",
]

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
        model: Mapping[str, bytes] | None = None,
    ) -> Path:
        keys = KEYS if base is None else KEYS[:50]
        content = {}
        for table in tables:
            rows = np.full((len(keys), table.dim), 0.5, np.float32)
            rows[:, 0], rows[:, 1], rows[:, 2] = step, keys, -keys
            content[table] = dict(zip(keys.tolist(), rows, strict=True))
        return self.publish_rows(content, step, base, dtype, model)

    def publish_rows(
        self,
        tables: Mapping[TableConfig, Mapping[int, Any]],
        step: int = 1,
        base: int | None = None,
        dtype: str = "fp32",
        model: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Publishes the given rows by table and key; `dtype` applies to `item`, and `model` are the files
        of the model."""
        run = f"{self.path}/run/step-{step}"
        over = None if base is None else f"{self.path}/run/step-{base}"
        writer = SnapshotWriter(run, step=step, base=over)
        for table, rows in tables.items():
            keys = np.array(list(rows), np.int64)
            values = np.array(list(rows.values()), np.float32).reshape(-1, table.dim)
            chunk = ScanChunk(keys, values, np.zeros(len(keys), np.uint64))
            writer.write_table(TableDescription.of(table), [chunk])
        writer.finish()
        writer.commit()
        written = f"{self.served}/step-{step}"
        over = None if base is None else f"{self.served}/step-{base}"
        quantize = {"item": dtype} if ITEM in tables else {}
        options = sparring_packed.WriteOptions(model=model or {})
        sparring_packed.write(run, written, base=over, quantize=quantize, options=options)
        return Path(written)


def make_config(folder: Folder, **server: Any) -> ServingConfig:
    """Returns the configuration of a server that looks for newer versions only on request."""
    options = {"poll_seconds": 3600, "metrics_port": 0, "health_port": 0, **server}
    return ServingConfig(snapshots=folder.served, server=ServerConfig(**options))


class FrontEnd:
    """A running server.

    Attributes:
        address: Address of its port.
        health_address: Address of `server.health_port`.
        metrics_address: Address of `server.metrics_port`.
        lines: Log messages so far.
    """

    address: str
    health_address: str
    metrics_address: str
    lines: list[str]

    def refresh(self) -> RefreshReply:
        """Makes the server check for a newer version."""
        reply: RefreshReply = decode(RefreshReply, call(self.address, f"{SERVICE}/Refresh")[3])
        return reply

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> FrontEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PythonFrontEnd(FrontEnd):
    """A server in Python, in this process. It has ports for metrics and health."""

    def __init__(self, open_it: Callable[[], LookupServer]) -> None:
        self.lines = []
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        self._logger = logging.getLogger("sparring_serve")
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self._handler)
        try:
            self._server = open_it()
        except BaseException:
            self._logger.removeHandler(self._handler)
            raise
        self.address = self._server.address
        assert self._server.health_port is not None
        assert self._server.exporter is not None
        self.health_address = f"127.0.0.1:{self._server.health_port.port}"
        self.metrics_address = f"127.0.0.1:{self._server.exporter.port}"

    def close(self) -> None:
        self._server.close()
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(logging.NOTSET)


class NativeFrontEnd(FrontEnd):
    """The native server, a process."""

    def __init__(
        self, folder: Folder, position: ShardPosition, address: str, **server: Any
    ) -> None:
        folder.path.mkdir(exist_ok=True)
        settings = folder.path / f"settings-{id(self)}"
        config = make_config(folder, **server)
        # `execute` starts the writer of the log in the same way.
        log = None if config.server.log.path is None else start_writer(config.server.log)
        descriptors = [] if log is None else [log[0].fileno()]
        settings.write_text(encode_settings(config, position, address, "info", *descriptors))
        self._process = subprocess.Popen(
            [os.environ.get("SPARRING_SERVE_TEST_EXECUTABLE", EXECUTABLE), settings],
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=descriptors,
        )
        if log is not None:
            log[0].close()
        self.lines = []
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

    def limit_files(self, num_more: int) -> None:
        """Limits the files that the process may open to those that are open and `num_more`."""
        most = len(list(Path(f"/proc/{self._process.pid}/fd").iterdir())) + num_more
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (most, most))

    def close(self) -> None:
        self._process.terminate()
        assert self._process.wait(60) == 0, "".join(self.lines)
        self._reading.join()


def open_front_end(
    kind: str,
    folder: Folder,
    position: ShardPosition | None = None,
    address: str = "127.0.0.1:0",
    **server: Any,
) -> FrontEnd:
    """Starts the server `python` or `native`, by default on free ports."""
    position = position or ShardPosition(ONE_SHARD)
    if kind == "native":
        return NativeFrontEnd(folder, position, address, **server)
    config = make_config(folder, **server).model_copy(update={"shards": position.shards.shards})
    return PythonFrontEnd(lambda: open_server(config, shard=position.shard, address=address))


def scrape(server: FrontEnd, token: str = "", ca: Path | None = None) -> tuple[int, str]:
    """Returns the HTTP status and the page of the metrics endpoint.

    Args:
        server: the server.
        token: header ``Authorization``; "" omits it.
        ca: certificate to trust, for https; None reads over http.
    """
    handlers: list[Any] = [urllib.request.ProxyHandler({})]
    if ca is not None:
        context = ssl.create_default_context(cafile=str(ca))
        handlers.append(urllib.request.HTTPSHandler(context=context))
    scheme = "http" if ca is None else "https"
    headers = {"Authorization": token} if token else {}
    asked = urllib.request.Request(f"{scheme}://{server.metrics_address}/metrics", headers=headers)
    try:
        with urllib.request.build_opener(*handlers).open(asked, timeout=60) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read_metrics(server: FrontEnd) -> dict[str, float]:
    """Returns the samples of the metrics endpoint: name with labels → value."""
    status, page = scrape(server)
    assert status == 200, page
    samples = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name.removeprefix("sparring_serving_"): float(value) for name, _, value in samples}


Reply = tuple[str, str, dict[str, Any], bytes]


def call(address: str, method: str, request: Any = b"", **options: Any) -> Reply:
    """Returns the status, its message, the trailing metadata, and the reply (empty if it failed)."""
    content = request if isinstance(request, bytes) else encode(request)
    with grpc.insecure_channel(
        address, options=(("grpc.max_receive_message_length", -1),)
    ) as channel:
        made = channel.unary_unary(f"/{method}").future(content, **{"timeout": 9, **options})
        error = made.exception()
        trailing = dict(made.trailing_metadata() or ())
        return made.code().name, made.details() or "", trailing, b"" if error else made.result()


def pull(*tables: tuple[str, Any], **fields: Any) -> PullRequest:
    """Returns the request of the given ids of tables."""
    asked = tuple(TableIds(name, np.array(ids, np.int64).tobytes()) for name, ids in tables)
    return PullRequest(asked, **fields)
