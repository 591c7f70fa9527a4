"""Memory of the servers after calls of the maximum size."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring_serve.testing.front_ends import Folder
from sparring_serve.testing.raw_connection import RawConnection
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds
from sparring_testing.processes.waiting import wait_until

from .conftest import NATIVE

WIDE = TableConfig("wide", 64)
NUM_IDS = 100_000  # replies of 25.6 MB
IN_FLIGHT_BYTES = 96 << 20


@pytest.fixture
def process(tmp_path: Path, kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    folder = Folder(tmp_path)
    folder.publish_rows({WIDE: {key: np.ones(64, np.float32) for key in range(1000)}})
    config = tmp_path / "serving.yaml"
    config.write_text(
        f"snapshots: {folder.served}\n"
        f"server: {{front_end: {kind}, address: '127.0.0.1:0', max_bytes_in_flight: {IN_FLIGHT_BYTES}, "
        "max_deadline_seconds: 120}\n"
    )
    command = [sys.executable, "-m", "sparring", "serve", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        try:
            lines = iter(started.stderr.readline, "")
            [address] = next(
                found for line in lines if (found := re.findall(r"ready on (\S+):", line))
            )
            yield started, address
        finally:
            started.send_signal(signal.SIGTERM)
            started.stderr.read()


def anonymous_bytes(pid: int) -> int:
    [kilobytes] = re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) << 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", NATIVE])
def test_large_calls_leave_less_memory_than_the_limit_of_calls_in_flight(
    process: tuple[subprocess.Popen[str], str],
) -> None:
    started, address = process
    content = encode(PullRequest((TableIds("wide", np.arange(NUM_IDS).tobytes()),)))
    with grpc.insecure_channel(
        address, options=[("grpc.max_receive_message_length", -1)]
    ) as channel:
        pull = channel.unary_unary(f"/{SERVICE}/Pull")
        pull(content, timeout=60)
        before = anonymous_bytes(started.pid)
        for _ in range(10):
            for each in [pull.future(content, timeout=60) for _ in range(3)]:
                assert len(each.result()) > 25_000_000
    assert anonymous_bytes(started.pid) - before < IN_FLIGHT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", NATIVE])
def test_calls_that_are_cancelled_at_once_leave_little_memory(
    process: tuple[subprocess.Popen[str], str], kind: str
) -> None:
    started, address = process
    before = anonymous_bytes(started.pid)

    def is_closed_after_cancelled_calls() -> bool:
        try:
            with RawConnection(address) as connection:
                for _ in range(30_000):
                    connection.cancel(connection.begin(f"/{SERVICE}/Pull"))
        except ConnectionError:
            return True
        return False

    with ThreadPoolExecutor() as callers:
        calls = [callers.submit(is_closed_after_cancelled_calls) for _ in range(8)]
        are_closed = [each.result() for each in calls]
    # gRPC of the server in Python limits such calls by itself.
    assert any(are_closed) or kind == "python"
    wait_until(lambda: anonymous_bytes(started.pid) - before < IN_FLIGHT_BYTES, seconds=60)
