"""A server whose threads are all stuck is detected, and its process ends with exit code 70."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring_serve.cli.serve import EXIT_STUCK
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.server import call_watch
from sparring_serve.server.call_watch import CallWatch
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(call_watch, "_GRACE_SECONDS", 0.1)
    made = CallWatch()
    yield made
    made.close()


def hold(watch: CallWatch, seconds: float, until: threading.Event) -> threading.Thread:
    """Runs a call with a deadline on a separate thread."""
    held = threading.Event()

    def call() -> None:
        with watch.call(time.monotonic(), seconds):
            held.set()
            until.wait(20)

    thread = threading.Thread(target=call)
    thread.start()
    assert held.wait(20)
    return thread


@pytest.mark.parametrize(
    ("seconds", "is_stuck"),
    [((0.0, 0.0), True), ((0.1, 0.2), True), ((0.1, 60.0), False), ((0.1, 1e9), False)],
)
def test_a_server_is_stuck_if_all_threads_are_past_their_deadlines(
    watch: CallWatch, caplog: pytest.LogCaptureFixture, seconds: Any, is_stuck: bool
) -> None:
    stuck, end = threading.Event(), threading.Event()
    threads = [hold(watch, each, end) for each in seconds]
    watch.start(2, stuck.set, interval_seconds=0.05)
    assert stuck.wait(20 if is_stuck else 0.6) is is_stuck
    assert ("all 2 threads (server.threads) are occupied by calls" in caplog.text) is is_stuck
    end.set()
    for each in threads:
        each.join()
    assert watch.num_overdue() == 0


def test_calls_without_a_deadline_are_overdue_after_ten_minutes(
    watch: CallWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr(call_watch.time, "monotonic", lambda: clock[0])
    with watch.call(clock[0] - 3, 1e9):
        assert watch.waited_seconds() == pytest.approx(3)
        clock[0] += 599
        assert watch.num_overdue() == 0
        clock[0] += 2
        assert watch.num_overdue() == 1


SERVER = """
import sys, threading
from sparring_cli.application import main
from sparring_serve.tables.packed import PackedServingTables
from sparring_serve.server import call_watch

call_watch._GRACE_SECONDS = 0.5
PackedServingTables.lookup = lambda *_: threading.Event().wait()
sys.exit(main(["serve", sys.argv[1]]))
"""


def test_the_process_of_a_stuck_server_ends_with_70(tmp_path: Path) -> None:
    writer = SnapshotWriter(str(tmp_path / "run/step-1"), step=1)
    writer.write_table(TableDescription.of(TableConfig("item", 4)), list[ScanChunk]())
    writer.finish()
    writer.commit()
    publish_newest(tmp_path / "run", tmp_path / "served", PublisherOptions({}))
    path = tmp_path / "serving.yaml"
    server = {"address": "127.0.0.1:0", "threads": 2, "front_end": "python"}
    path.write_text(yaml.safe_dump({"snapshots": str(tmp_path / "served"), "server": server}))
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        ready = next(each for each in lines if "ready on" in each)
        address = ready.split("ready on ")[1].split(": step")[0]
        with grpc.insecure_channel(address) as channel:
            pull = channel.unary_unary(f"/{SERVICE}/Pull")
            request = encode(PullRequest((TableIds("item", bytes(8)),)))
            calls = [pull.future(request, timeout=0.5) for _ in range(2)]
            for each in calls:
                assert isinstance(each.exception(), grpc.RpcError)
            said = process.stderr.read()
        assert process.wait(60) == EXIT_STUCK == 70
        assert "all 2 threads (server.threads) are occupied by calls whose deadlines passed" in said
    finally:
        process.kill()
        process.wait()
