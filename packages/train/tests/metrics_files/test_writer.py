"""Metrics that are written during training: the contents of the file, the thread, and failures.

The file is long because the contents of each format and every failure use the same writer and server.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    ClosedError,
    InvalidArgumentError,
    PluginError,
    SparringError,
    StorageIOError,
)
from sparring.rendezvous.environment import SingleRendezvous
from sparring.runtime.events import BackgroundError
from sparring.storage.memory import MemoryStorage
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_launchers import importing
from sparring_testing.processes.rank_threads import run_ranks
from sparring_tiered import TieredStorage
from sparring_train.config.sections.metrics import MetricsConfig
from sparring_train.loop.run_metrics import metrics_output
from sparring_train.metrics_files.json_lines import JsonLines
from sparring_train.metrics_files.writer import MetricsWriter

METHOD = resolve_method("sgd")
HYPER = parse_hyper(METHOD, {"lr": 1.0})
ALWAYS = 1e-9
NEVER = 1e9


class Job(SingleRendezvous):
    """A rendezvous of threads."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._owners = ShardMap.balanced(world_size)

    def shard_map(self) -> ShardMap:
        return self._owners


def make(collective: Collective | None = None) -> StepContainer:
    rendezvous = None if collective is None else Job(collective.world_size)
    made = StepContainer(collective=collective, rendezvous=rendezvous)
    stack = {"tiers": [{"backend": "memory", "options": {"capacity": 8}}, {"backend": "memory"}]}
    made.declare(TableConfig("plain", 2), StorageChoice("memory"))
    made.declare(TableConfig("stack", 2), StorageChoice("tiered", stack))
    for table in made.tables:
        made.set_state(table, np.empty(0, np.float32), METHOD.name)
    return made


def step(container: StepContainer, number: int = 0) -> None:
    for table in container.tables:
        ids = np.arange(10, dtype=np.int64) + 3 * number
        found = container.lookup(table, ids)
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
    choice = MethodChoice(METHOD, HYPER, container.counters.steps + 1)
    container.apply_methods(dict.fromkeys(container.tables, choice))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def is_of(
    found: Mapping[str, Any], container: StepContainer, tables: Sequence[str] = ("plain", "stack")
) -> bool:
    """Returns whether a line has the current numbers of the container."""
    assert found["steps"] == asdict(container.counters)
    assert found["prefetches"] == asdict(container.prefetches.counters)
    assert found["saves"] == asdict(container.saves.counters)
    assert found["exchange"] == asdict(container.exchange.counters)
    assert list(found["tables"]) == list(container.tables)
    for name in tables:
        table = found["tables"][name]
        assert table["rows"] == container.num_rows(name)
        assert table["memory_bytes"] == container.table_bytes(name)
        assert table["not_admitted"] == container.num_not_admitted(name)
        assert table["tiers"] == [each.as_dict() for each in container.tier_counters(name)]
    return True


def fail_with(code: int) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def test_the_last_line_has_the_final_numbers(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "metrics.jsonl"
    with make() as container:
        with MetricsWriter(container, path, every_seconds=NEVER) as writer:
            assert writer.path == path
            for number in range(5):
                step(container, number)
        first, last = lines_of(path)
        assert is_of(last, container)
        assert last["tables"]["stack"]["tiers"][0]["hits"] > 0
        assert last["tables"]["stack"]["tiers"][1]["written_bytes"] > 0
    assert (first["steps"]["steps"], last["steps"]["steps"]) == (0, 5)
    assert (last["rank"], last["events"], last["lines"]) == (
        0,
        {"num_outstanding": 0, "num_failed": 0},
        {"num_skipped": 0},
    )
    assert datetime.fromisoformat(last["time"]).utcoffset() == timedelta(0)


def test_lines_are_written_during_training_and_each_is_from_the_end_of_a_step(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    with make() as container, MetricsWriter(container, path, every_seconds=ALWAYS):
        for number in range(4):
            step(container, number)
            container.events.drain()
            # Rows of the stack are written to the lower tier at the same time as the line.
            assert is_of(lines_of(path)[-1], container, ["plain"])
    assert [each["steps"]["steps"] for each in lines_of(path)] == [0, 1, 2, 3, 4, 4]


def test_nothing_is_written_by_the_thread_that_drives_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = []
    write = JsonLines.write

    def note(self: JsonLines, metrics: Mapping[str, Any]) -> None:
        writers.append(threading.current_thread().name)
        write(self, metrics)

    monkeypatch.setattr(JsonLines, "write", note)
    path = tmp_path / "metrics.jsonl"
    with make() as container, MetricsWriter(container, path, every_seconds=ALWAYS):
        for _ in range(3):
            step(container)
            container.events.drain()
    assert len(writers) == len(lines_of(path)) == 5
    assert all(name.startswith("sparring-events-") for name in writers), writers


def test_a_full_disk_is_raised_by_the_next_step_which_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    with make() as container, MetricsWriter(container, path, every_seconds=ALWAYS) as writer:
        with monkeypatch.context() as full:
            full.setattr(
                "sparring_train.metrics_files.json_lines.os.write", fail_with(errno.ENOSPC)
            )
            step(container, 0)
            container.events.drain()
        before = container.counters.steps, container.num_rows("plain")
        with pytest.raises(BackgroundError, match="free space on the disk, or choose") as caught:
            step(container, 1)
        assert isinstance(caught.value.__cause__, StorageIOError)
        assert isinstance(caught.value.__cause__.__cause__, OSError)
        assert (container.counters.steps, container.num_rows("plain")) == before
        step(container, 1)
        writer.close()
        assert is_of(lines_of(path)[-1], container)
        assert container.counters.steps == 2


def test_half_a_line_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.write({"steps": 1})
    write, calls = os.write, []

    def half(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as full:
        full.setattr("sparring_train.metrics_files.json_lines.os.write", half)
        with pytest.raises(OSError, match="No space left"):
            lines.write({"steps": 2})
    assert path.read_text() == '{"steps": 1}\n'
    lines.write({"steps": 3})
    assert lines_of(path) == [{"steps": 1}, {"steps": 3}]


def test_a_line_truncated_by_a_kill_stays_separate(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"steps": 1}\n{"ste')
    JsonLines(path).write({"steps": 2})
    assert path.read_text() == '{"steps": 1}\n{"ste\n{"steps": 2}\n'


@pytest.mark.parametrize("file_format", ["jsonl", "prometheus"])
@pytest.mark.parametrize("place", ["below a file", "a folder"])
def test_an_unwritable_place_is_rejected_before_the_first_step(
    place: str, file_format: str, tmp_path: Path
) -> None:
    if file_format == "prometheus":
        pytest.importorskip("prometheus_client", reason="the format needs sparring[metrics]")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    path = tmp_path / ("file/metrics" if place == "below a file" else "folder")
    with make() as container:
        with pytest.raises(StorageIOError, match=r"writing metrics to .* failed"):
            MetricsWriter(container, path, file_format=file_format)
        step(container)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_a_full_device_is_rejected_before_the_first_step() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with make() as container, pytest.raises(StorageIOError, match="No space left"):
        MetricsWriter(container, "/dev/full")


def test_a_slow_disk_skips_lines_and_delays_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    write, is_going_on = JsonLines.write, threading.Event()
    begun = []

    def wait(self: JsonLines, metrics: Mapping[str, Any]) -> None:
        begun.append(metrics["steps"]["steps"])
        assert is_going_on.wait(10)
        write(self, metrics)

    with make() as container, MetricsWriter(container, path, every_seconds=ALWAYS) as writer:
        monkeypatch.setattr(JsonLines, "write", wait)
        for number in range(6):
            step(container, number)
        assert writer.num_skipped == 5
        is_going_on.set()
        writer.close()
    found = lines_of(path)
    assert [each["steps"]["steps"] for each in found] == [0, 1, 6]
    assert begun == [1, 6]
    assert found[-1]["lines"] == {"num_skipped": 5}


def test_a_full_event_loop_skips_lines_and_delays_no_step(tmp_path: Path) -> None:
    path, is_going_on = tmp_path / "metrics.jsonl", threading.Event()
    with make() as container, MetricsWriter(container, path, every_seconds=ALWAYS) as writer:
        for _ in range(container.events.capacity):
            container.events.submit(lambda: is_going_on.wait(10))
        step(container)
        assert writer.num_skipped == 1
        is_going_on.set()
    assert [each["steps"]["steps"] for each in lines_of(path)] == [0, 1]


def test_numbers_that_a_server_must_count_are_requested_only_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "metrics.jsonl", []
    size = MemoryStorage._size_impl

    def count(self: MemoryStorage) -> int:
        asked.append(self)
        return size(self)

    with make() as container:
        stack = container.storage("stack")
        assert isinstance(stack, TieredStorage)
        storages = [container.storage("plain"), stack.tiers[1]]
        for each in storages:
            each.capabilities = replace(each.capabilities, persistent=True)
        with MetricsWriter(container, path, every_seconds=ALWAYS):
            monkeypatch.setattr(MemoryStorage, "_size_impl", count)
            step(container)
            container.events.drain()
            assert not set(storages) & set(asked)
        line, last = (each["tables"] for each in lines_of(path)[1:])
    assert [line["plain"][name] for name in ("rows", "memory_bytes")] == [None, None]
    assert line["stack"]["rows"] == 10
    assert [each["rows"] for each in line["stack"]["tiers"]] == [8, None]
    assert [last[name]["rows"] for name in ("plain", "stack")] == [10, 10]
    assert last["stack"]["tiers"][1]["rows"] > 0


def test_a_program_that_exits_without_closing_writes_pending_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import time\n"
        f"import {__name__} as tests\n"
        "container = tests.make()\n"
        f"writer = tests.MetricsWriter(container, {str(path)!r}, every_seconds=tests.ALWAYS)\n"
        "container.events.submit(lambda: time.sleep(0.2))\n"
        "container.events.submit(lambda: time.sleep(0.2))\n"
        "tests.step(container)\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(
        command,
        env={**os.environ, **importing(__name__)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [each["steps"]["steps"] for each in lines_of(path)] == [0, 1]


def test_closing_twice_writes_once_and_later_steps_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with make() as container:
        writer = MetricsWriter(container, path, every_seconds=ALWAYS)
        writer.close()
        writer.close()
        step(container)
        container.events.drain()
    assert len(lines_of(path)) == 2


def test_a_writer_keeps_no_container_alive(tmp_path: Path) -> None:
    container = make()
    writer = MetricsWriter(container, tmp_path / "metrics.jsonl")
    container.close()
    with pytest.raises(ClosedError, match="close the writer before the"):
        writer.close()


def test_after_an_error_the_last_numbers_are_written_and_the_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"

    def diverge() -> None:
        with MetricsWriter(container, path, every_seconds=NEVER):
            step(container)
            raise RuntimeError("the model diverged")

    with make() as container:
        with pytest.raises(RuntimeError, match="diverged"):
            diverge()
        assert lines_of(path)[-1]["steps"]["steps"] == 1
        count = iter(range(9))
        write = JsonLines.write
        monkeypatch.setattr(
            JsonLines,
            "write",
            lambda *given: write(*given) if next(count) == 0 else fail_with(errno.ENOSPC)(),
        )
        with pytest.raises(RuntimeError, match="diverged"):
            diverge()


@pytest.mark.parametrize("name", ["metrics-{rank}-of-{world_size}.jsonl", "metrics.jsonl"])
def test_each_rank_has_its_own_file_and_a_single_file_belongs_to_rank_0(
    name: str, tmp_path: Path
) -> None:
    def body(collective: Collective) -> None:
        chosen = MetricsConfig(path=str(tmp_path / name), every_seconds=NEVER)
        container = make(collective)
        with container, metrics_output(container, chosen):
            for number in range(3):
                step(container, number)

    run_ranks(2, body)
    files = {each.name: lines_of(each) for each in tmp_path.iterdir()}
    assert all(len(lines) == 2 for lines in files.values())
    lasts = {name: lines[-1] for name, lines in files.items()}
    if "{rank}" in name:
        assert sorted(lasts) == ["metrics-0-of-2.jsonl", "metrics-1-of-2.jsonl"]
        both = list(lasts.values())
        assert sorted(each["rank"] for each in both) == [0, 1]
        assert sum(each["tables"]["plain"]["rows"] for each in both) == 16
    else:
        assert [(key, each["rank"]) for key, each in lasts.items()] == [(name, 0)]
    assert all(each["steps"]["steps"] == 3 for each in lasts.values())
    assert all(each["exchange"]["wire_bytes_sent"]["keys"] > 0 for each in lasts.values())


def test_a_file_that_one_rank_cannot_write_is_rejected_on_all(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("")

    def body(collective: Collective) -> str:
        chosen = MetricsConfig(path=str(tmp_path / "{rank}" / "metrics.jsonl"))
        container = make(collective)
        with container, pytest.raises(StorageIOError) as caught, metrics_output(container, chosen):
            raise AssertionError("the run began")
        return str(caught.value)

    assert all("writing metrics to" in message for message in run_ranks(2, body))


def test_a_disk_that_fails_one_rank_ends_the_next_step_on_all_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = JsonLines.write

    def fail_once(self: JsonLines, metrics: Mapping[str, Any]) -> None:
        if metrics["rank"] == 1 and metrics["steps"]["steps"] == 1:
            fail_with(errno.ENOSPC)()
        write(self, metrics)

    def body(collective: Collective) -> tuple[str, int]:
        chosen = MetricsConfig(path=str(tmp_path / "{rank}.jsonl"), every_seconds=ALWAYS)
        container = make(collective)
        with container, metrics_output(container, chosen):
            step(container, 0)
            container.events.drain()
            with pytest.raises(SparringError) as caught:
                step(container, 1)
            step(container, 1)
            return str(caught.value), container.counters.steps

    monkeypatch.setattr(JsonLines, "write", fail_once)
    told = run_ranks(2, body)
    assert [steps for _, steps in told] == [2, 2]
    assert all("writing metrics to" in message for message, _ in told)


def test_wrong_arguments_are_rejected(tmp_path: Path) -> None:
    with make() as container:
        with pytest.raises(InvalidArgumentError, match="every_seconds: found 0"):
            MetricsWriter(container, tmp_path / "metrics", every_seconds=0)
        with pytest.raises(
            InvalidArgumentError, match="found the format 'xml', expected one of jsonl, prom"
        ):
            MetricsWriter(container, tmp_path / "metrics", file_format="xml")
        with pytest.raises(InvalidArgumentError, match="found the URL s3://bucket/metrics"):
            MetricsWriter(container, "s3://bucket/metrics")
    assert not list(tmp_path.iterdir())


def test_prometheus_reads_the_file_and_finds_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the format needs sparring[metrics]")
    from prometheus_client.parser import text_string_to_metric_families

    path = tmp_path / "sparring.prom"
    with make() as container:
        with MetricsWriter(container, path, every_seconds=ALWAYS, file_format="prometheus"):
            for number in range(5):
                step(container, number)
        families = list(text_string_to_metric_families(path.read_text()))
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }
        tier = container.tier_counters("stack")[1]
        rank = ("rank", "0")
        where = (("backend", "memory"), rank, ("table", "stack"), ("tier", "1"))
        assert samples["sparring_steps_total", rank] == 5
        assert samples["sparring_steps_rows_updated_total", rank] == container.counters.rows_updated
        assert samples["sparring_tables_rows", rank, ("table", "plain")] == 22
        assert samples["sparring_exchange_wire_bytes_sent_total", ("kind", "keys"), rank] == 0
        assert samples[("sparring_tiers_hits_total", *where)] == tier.hits
        assert samples[("sparring_tiers_written_bytes_total", *where)] == tier.written_bytes > 0
    assert {each.type for each in families} == {"counter", "gauge"}
    assert [each.name for each in tmp_path.iterdir()] == ["sparring.prom"]


def page(port: int | None) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_a_port_shows_the_newest_numbers_until_the_end(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="a port needs sparring[metrics]")
    path = tmp_path / "metrics.jsonl"
    with make() as container:
        with MetricsWriter(container, path, every_seconds=ALWAYS, port=0) as writer:
            port = writer.port
            assert 'sparring_steps_total{rank="0"} 0.0' in page(port)
            step(container)
            container.events.drain()
            text = page(port)
            assert 'sparring_steps_total{rank="0"} 1.0' in text
            assert "# TYPE sparring_tables_rows gauge" in text
            assert "# TYPE sparring_steps_total counter" in text
        with pytest.raises(OSError, match="refused"):
            page(port)
    assert len(lines_of(path)) == 3


def test_each_rank_has_a_separate_port() -> None:
    pytest.importorskip("prometheus_client", reason="a port needs sparring[metrics]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        first = free.getsockname()[1]

    def body(collective: Collective) -> str:
        with make(collective) as container, MetricsWriter(container, port=first) as writer:
            assert writer.path is None
            assert writer.port == first + collective.rank
            collective.barrier()
            return page(writer.port)

    for rank, text in enumerate(run_ranks(2, body)):
        assert f'sparring_steps_total{{rank="{rank}"}} 0.0' in text


def test_a_taken_port_is_named_and_nothing_runs() -> None:
    pytest.importorskip("prometheus_client", reason="a port needs sparring[metrics]")
    with make() as container, MetricsWriter(container, port=0) as writer:
        with pytest.raises(StorageIOError, match=rf":{writer.port} .*choose another metrics\.port"):
            MetricsWriter(container, port=writer.port)
        assert len(container.after_step) == 1


def test_without_prometheus_client_the_install_command_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with make() as container, pytest.raises(PluginError, match=r"pip install 'sparring\[metrics\]"):
        MetricsWriter(container, tmp_path / "a.prom", file_format="prometheus")
    with (
        make() as container,
        pytest.raises(PluginError, match=r"metrics\.port needs prometheus-client"),
    ):
        MetricsWriter(container, port=0)
