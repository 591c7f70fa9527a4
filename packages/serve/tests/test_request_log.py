"""`server.log`: sampled requests of both servers are written as Arrow, without delaying replies."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import hash_strings
from sparring.errors import InvalidArgumentError, PluginError
from sparring_serve import (
    ClientConfig,
    LookupClient,
    Sample,
    ServingMetrics,
    ShardPosition,
    request_log,
)
from sparring_serve.config import LogConfig
from sparring_serve.request_log import HEAD, LoggedKind, RequestLog
from sparring_serve.server import native_front_end
from sparring_serve.testing.front_ends import ONE_SHARD, Folder, call, make_config, read_metrics
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PullRequest, SampleColumn, TableIds
from sparring_serve.wire.open_inference import INFERENCE, InferRequest, InferTensor
from sparring_testing.processes.waiting import wait_until

from .conftest import Serve

pyarrow = pytest.importorskip("pyarrow", reason="writes and reads the log")
from sparring_serve.server import log_writer  # noqa: E402 - imports pyarrow
from sparring_serve.server.log_writer import LogWriter, read_message  # noqa: E402

LONG = ClientConfig(deadline_seconds=20)


def read_log(folder: Path) -> list[Any]:
    """Returns the tables of the files, oldest first."""
    return [pyarrow.ipc.open_stream(path).read_all() for path in sorted(folder.glob("*.arrows"))]


def test_samples_are_logged_with_request_id_time_and_version(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "log"
    server = serve(log={"path": path, "fraction": 1.0})
    columns = {
        "item": ["a", "b", "a"],
        "user": np.array([1, -1, 2**62]),
        "seen": [["a", "b"], [], None],
        "price": [0.1, 2.5, float("nan")],
        "age": [30, None, 31],
    }
    begin = time.time()
    with LookupClient(server.address, LONG) as client:
        version = client.pull({"item": [7]}, sample=Sample(columns, "page-17")).versions[0].hash
    [table] = wait_for_rows(path, 3)
    found = table.to_pydict()
    times = [each.timestamp() for each in found.pop("served_time")]
    assert all(begin - 1 < each < time.time() + 1 for each in times)
    a, b = hash_strings(["a", "b"]).tolist()
    prices = struct.pack("3f", *found.pop("price"))
    assert prices == np.array([0.1, 2.5, np.nan], np.float32).tobytes()
    assert found == {
        "request_id": ["page-17"] * 3,
        "served_version": [version] * 3,
        "item": [a, b, a],
        "user": [1, -1, 2**62],
        "seen": [[a, b], [], []],
        "age": [[30], [], [31]],
    }
    assert read_metrics(server)['logged_total{result="queued"}'] == 1


def test_requests_without_a_sample_are_logged_by_table(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "log"
    server = serve(log={"path": path, "fraction": 1.0})
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [7, 8, 7], "user": [3]})
    tensor = InferTensor("ids", "INT64", (2, 1))
    ids = np.array([5, 5], np.int64).tobytes()
    request = InferRequest("item", id="r", inputs=(tensor,), raw_input_contents=(ids,))
    call(server.address, f"{INFERENCE}/ModelInfer", request)
    call(server.address, f"{INFERENCE}/ModelInfer", InferRequest("unknown", inputs=(tensor,)))
    pulled, inferred = wait_for_rows(path, 2)
    assert [sorted(each) for each in pulled["item"].to_pylist()] == [[7, 8]]
    assert pulled["user"].to_pylist() == [[3]]
    assert inferred.select(["request_id", "item"]).to_pylist() == [
        {"request_id": "r", "item": [5, 5]}
    ]


def test_the_fraction_is_sampled(serve: Serve, tmp_path: Path) -> None:
    server = serve(log={"path": tmp_path / "log", "fraction": 0.25})
    with LookupClient(server.address, LONG) as client:
        for _ in range(400):
            client.pull({"item": [7]})
    # The standard deviation is 9.
    assert 40 < read_metrics(server)['logged_total{result="queued"}'] < 160


def test_a_writer_that_does_not_read_delays_no_reply() -> None:
    """Nobody reads the socket; entries that do not fit are counted."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    metrics = ServingMetrics()
    log = RequestLog(ours, 1.0, metrics)
    for _ in range(100):
        log.note(LoggedKind.PULL, "v", bytes(50_000))
    assert metrics.value("logged_total", result="queued") > 0
    assert metrics.value("logged_total", result="dropped") > 0
    theirs.close()
    log.note(LoggedKind.PULL, "v", b"")
    assert metrics.value("logged_total") == 101
    ours.close()


def test_the_native_server_inherits_the_socket_of_the_log(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    settings: list[str] = []
    monkeypatch.setattr("os.execv", lambda _, words: settings.append(Path(words[1]).read_text()))
    config = make_config(folder, log={"path": path, "fraction": 0.5})
    native_front_end.execute(config, ShardPosition(ONE_SHARD), "127.0.0.1:0", "info")
    found = dict(line.partition("\t")[::2] for line in settings[0].splitlines())
    assert found["log_fraction"] == "0.5"
    with socket.socket(fileno=int(found["log_descriptor"])) as inherited:
        assert inherited.get_inheritable()
        inherited.send(pull("a", 1))
    assert wait_for_rows(path, 1)[0]["request_id"].to_pylist() == ["a"]


def wait_for_rows(folder: Path, count: int) -> list[Any]:
    wait_until(lambda: sum(map(len, read_log(folder))) >= count, 60, lambda: read_log(folder))
    return read_log(folder)


def message(kind: LoggedKind, content: bytes) -> bytes:
    return HEAD.pack(kind, 12.5, 1) + b"v" + content


def pull(request_id: str, *ids: int) -> bytes:
    tables = (TableIds("item", np.array(ids, np.int64).tobytes()),)
    return message(LoggedKind.PULL, encode(PullRequest(tables, request_id=request_id)))


def test_the_oldest_files_are_removed_when_the_folder_is_full(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 1 << 20)
    for number in range(300):
        writer.add(read_message(pull(str(number), *range(1000))))
        writer.flush()
    writer.close()
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 1 << 20
    kept = [int(each) for table in read_log(tmp_path) for each in table["request_id"].to_pylist()]
    assert kept == list(range(kept[0], 300))
    assert len(kept) > 80


def test_files_of_many_schemas_do_not_exceed_the_size_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    other = folder / "0.arrows"
    other.touch()
    writer = LogWriter(folder, 1 << 20)
    ids = np.arange(300).tobytes()
    for number in range(1200):
        request = PullRequest((TableIds(f"table {number % 8}", ids),))
        writer.add(read_message(message(LoggedKind.PULL, encode(request))))
        if number % 8 == 7 or writer.is_full:
            writer.flush()
        # Each of the open files can exceed its share by one batch.
        assert sum(each.stat().st_size for each in folder.iterdir()) < 1.1 * (1 << 20)
    writer.close()
    assert other.exists(), "only files of the log are removed"


def test_rows_of_a_removed_file_are_written_to_another_one(tmp_path: Path) -> None:
    """A person removes files with erased ids, also those that are open."""
    writer = LogWriter(tmp_path, 1 << 20)
    for request_id in ("first", "second", "third"):
        writer.add(read_message(pull(request_id, 1)))
        writer.flush()
        [table] = read_log(tmp_path)
        assert table["request_id"].to_pylist() == [request_id]
        [path] = tmp_path.iterdir()
        path.unlink()
    num_descriptors = len(list(Path("/proc/self/fd").iterdir()))
    writer.flush()
    assert len(list(Path("/proc/self/fd").iterdir())) == num_descriptors - 1
    writer.close()


def test_a_full_disk_leaves_no_files_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts to open a file are repeated each second, so nothing may remain of them."""

    class FullDisk:
        def __getattr__(self, name: str) -> Any:
            return fail if name == "write" else getattr(os, name)

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_writer, "os", FullDisk())
    writer = LogWriter(tmp_path, 1 << 20)
    num_descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            writer.add(read_message(pull("a", 1)))
    assert not list(tmp_path.iterdir())
    assert len(list(Path("/proc/self/fd").iterdir())) == num_descriptors


def test_a_batch_that_failed_is_written_again(tmp_path: Path, monkeypatch: Any) -> None:
    """The disk becomes full within a batch: the file remains readable, and no row is lost or repeated."""
    room = 0

    def write(descriptor: int, content: Any) -> int:
        if len(content) > room:
            os.write(descriptor, bytes(content[:7]))
            raise OSError(28, "No space left on device")
        return os.write(descriptor, content)

    writer = LogWriter(tmp_path, 1 << 20)
    writer.add(read_message(pull("first", 1)))
    writer.flush()

    class FakeOs:
        def __getattr__(self, name: str) -> Any:
            return write if name == "write" else getattr(os, name)

    monkeypatch.setattr(log_writer, "os", FakeOs())
    writer.add(read_message(pull("second", 2)))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    [table] = read_log(tmp_path)
    assert table["request_id"].to_pylist() == ["first"]
    room = 1 << 20
    writer.close()
    [table] = read_log(tmp_path)
    assert table["request_id"].to_pylist() == ["first", "second"]


DAMAGED: dict[str, SampleColumn] = {
    "are not a multiple of 8": SampleColumn("item", bytes(7)),
    "are not a multiple of 4": SampleColumn("item", b"", bytes(7)),
    "do not add up": SampleColumn("item", bytes(16), b"", np.array([1, 2]).tobytes()),
    "columns of the sample have 1 to 2 rows": SampleColumn("item", bytes(16)),
    "found ids and numbers": SampleColumn("item", bytes(8), bytes(4)),
    "column 'user': its name occurs twice": SampleColumn("user", bytes(8)),
    "column 'served_time': its name": SampleColumn("served_time", bytes(8)),
}


def test_damaged_entries_are_left_out_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    running = threading.Thread(target=log_writer.run, args=(theirs, LogWriter(tmp_path, 1 << 20)))
    running.start()
    other = SampleColumn("user", bytes(8))
    for each in DAMAGED.values():
        ours.send(message(LoggedKind.PULL, encode(PullRequest(sample=(other, each)))))
    ours.send(message(LoggedKind.INFER, b"\xff"))
    ours.send(pull("x" * 257, 1))
    ours.send(pull("good", 1))
    ours.close()
    running.join(60)
    [table] = read_log(tmp_path)
    assert table["request_id"].to_pylist() == ["good"]
    shown = capsys.readouterr().err
    assert all(each in shown for each in DAMAGED)
    assert shown.count("an entry was left out") == len(DAMAGED) + 2


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1], "b": [1, 2]}, "one value per example, found {'a': 1, 'b': 2}"),
        ({"request_id": [1]}, "'request_id' is written by the log itself"),
        ({"a": ["x", 1]}, "cannot convert the column 'a'"),
        ({"a": np.zeros((1, 2))}, r"found dtype float64, shape \(1, 2\)"),
        ({"a": [2**70]}, "'a'"),
        ([1], "must be a mapping"),
    ],
)
def test_invalid_samples_are_rejected_before_the_call(
    columns: Any, message: str, closed_client: LookupClient
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        closed_client.pull({"item": [1]}, sample=Sample(columns))


def test_a_long_request_id_is_rejected_before_the_call(closed_client: LookupClient) -> None:
    with pytest.raises(InvalidArgumentError, match="has 257 characters, expected at most 256"):
        closed_client.pull({"item": [1]}, sample=Sample({"item": [1]}, "x" * 257))


@pytest.fixture
def closed_client() -> Any:
    with LookupClient("127.0.0.1:1", ClientConfig(deadline_seconds=0.1)) as client:
        yield client


def test_pyarrow_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Callable[[str], None] = lambda _: None  # noqa: E731
    monkeypatch.setattr(request_log.importlib.util, "find_spec", missing)
    with pytest.raises(PluginError, match=r"pip install 'sparring-serve\[log\]'"):
        request_log.start_writer(LogConfig(path=tmp_path))
