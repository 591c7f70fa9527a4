"""`sparring doctor --job` finds each problem of a run before it starts, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import fsspec
import pytest

from sparring import make_plugin_manager
from sparring_cli import JobCheck, JobRequest, main
from sparring_train.checks import job, places
from sparring_train.checks.job import check_job
from sparring_train.checks.machine import check_memory, check_port, check_versions
from sparring_train.checks.places import check_clock, check_folder

CONFIG = """
data: {kind: table, path: ratings.csv, label: rating, categorical: [user, item], required: [user, item]}
model: {kind: matrix_factorization, dim: 16}
storage: {backend: memory}
snapshots: {url: new/run}
publish: {url: served}
metrics: {path: metrics.jsonl}
"""


@pytest.fixture(autouse=True)
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_LOCAL_PROBE_BYTES", 1 << 16)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "ratings.csv").write_text("user,item,rating\n1,2,3\n")
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


def failures(config: Path, *overrides: str, **size: Any) -> list[JobCheck]:
    request = JobRequest(str(config), overrides, **size)
    return [each for each in check_job(request, make_plugin_manager()) if each.status == "failed"]


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_sound_job_passes_and_nothing_remains(config: Path) -> None:
    before = files_below(config.parent)
    with redirect_stdout(StringIO()) as printed:
        assert main(["doctor", "--job", str(config), "--rows", "1000", "--json"]) == 0
    found = json.loads(printed.getvalue())
    assert found["num_failed"] == 0
    operations = " ".join(each["operation"] for each in found["checks"])
    for part in (
        "configuration",
        "versions",
        "memory",
        "snapshots.url",
        "publish.url",
        "data.path",
    ):
        assert part in operations
    assert files_below(config.parent) == before


def test_failures_are_printed_with_their_fix(config: Path) -> None:
    with redirect_stdout(StringIO()) as printed:
        assert main(["doctor", "--job", str(config), "data.path=missing.csv"]) == 1
    text = " ".join(printed.getvalue().split())
    assert "expected: files that can be read" in text
    assert "fix: correct the path" in text


def test_an_invalid_configuration_is_reported_with_its_lines(config: Path) -> None:
    [found] = failures(config, "model.dim=-1")
    assert found.operation == "read the configuration"
    assert "model.dim" in found.found


def test_missing_packages_are_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = "training.trackers=[tensorboard, aim]"
    monkeypatch.setattr(job, "find_spec", lambda name: None if name == "tensorboard" else name)
    known, unknown = sorted(
        failures(config, trackers, "metrics.port=0"), key=lambda each: each.fix
    )[::-1]
    assert known.fix.startswith("pip install 'sparring-train[tensorboard]'")
    assert "aim" in unknown.found
    monkeypatch.setattr(job, "find_spec", lambda _: None)
    [found] = failures(config, "metrics.port=0")
    assert found.fix.startswith("pip install 'sparring[metrics]'")


def test_a_used_port_is_found() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        found = check_port("metrics.port", "127.0.0.1", used.getsockname()[1])
    assert (found.status, "already in use" in found.found) == ("failed", True)
    assert check_port("metrics.port", "127.0.0.1", 0).status == "ok"
    # Rank r uses the port metrics.port + r.
    assert check_port("metrics.port", "127.0.0.1", 65_536).status == "failed"


def test_packages_of_different_releases_are_found() -> None:
    installed = {
        "sparring": "0.2.0",
        "sparring-serve": "0.1.3",
        "sparring-cli": "0.2.1",
        "numpy": "2",
    }
    found = check_versions(installed)
    assert (found.status, found.found) == ("failed", "sparring 0.2.0 with sparring-serve 0.1.3")
    assert found.fix == "pip install sparring-serve~=0.2.0"
    other = check_versions({"sparring": "0.1.0", "sparring-cli": "0.10.0"})
    assert other.fix == "pip install sparring-cli~=0.1.0"


def test_too_little_memory_is_found(config: Path) -> None:
    [found] = [each for each in failures(config, num_rows=10**12) if "memory" in each.operation]
    # A row has at most 16 numbers, two vectors of state and a key: 200 bytes, and its place in a table.
    assert 186e3 < float(found.expected.split()[2].replace(",", "")) < 4 * 186e3
    [budget] = failures(config, "tables.memory_bytes=100 TiB", num_ranks=2, world_size=2)
    assert "204,800.0 GiB for 2 ranks" in budget.expected
    assert [each.status for each in check_memory({"rows": 10}, 2, 20)] == ["ok"]


def test_a_disk_that_is_too_small_or_slow_is_found(config: Path) -> None:
    found = failures(config, num_rows=10**12)
    assert any("free space in snapshots.url" in each.operation for each in found)
    slow = failures(config, "snapshots.deadline_seconds=1", num_rows=10**10)
    assert any("measure writing to snapshots.url" in each.operation for each in slow)


def test_paths_of_tiers_are_tested(config: Path) -> None:
    pytest.importorskip("sparring_rocksdb", reason="pip install sparring-rocksdb")
    tiers = "[memory, {backend: rocksdb, options: {path: '/proc/rows/{table}'}}]"
    found = failures(config, f"storage={{backend: tiered, options: {{tiers: {tiers}}}}}")
    assert "write a file in storage.options.tiers.1.options.path" in {e.operation for e in found}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every folder")
def test_a_folder_without_permission_is_found_as_a_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert [each.status for each in check_folder("snapshots.url", str(tmp_path), None, 1)] == [
        "failed"
    ]


@pytest.mark.parametrize("operation", ["write", "rename", "read", "delete"])
def test_each_missing_permission_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operation: str
) -> None:
    system = fsspec.filesystem("file", use_listings_cache=False)
    method = {"write": "open", "rename": "mv", "read": "cat_file", "delete": "rm"}[operation]

    def reject(*_: Any, **__: Any) -> None:
        monkeypatch.undo()  # so that the probe can be removed
        raise PermissionError("not permitted")

    monkeypatch.setattr(type(system), method, reject)
    [found] = check_folder("snapshots.url", str(tmp_path), None, 1)
    assert (found.operation, found.status) == (f"{operation} a file in snapshots.url", "failed")
    assert "not permitted" in found.found
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_file_system_is_found(config: Path) -> None:
    [found] = failures(config, "snapshots.url=nosuch://bucket/run")
    assert found.operation == "open snapshots.url"


def test_clocks_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock("data.url", 1000.0, 1001.0).status == "ok"
    found = check_clock("data.url", 940.0, 1000.0)
    assert (found.status, found.found) == ("failed", "60.0 s difference")
    monkeypatch.setattr(places, "_modified", lambda *_: time.time() + 3600)
    checks = check_folder("snapshots.url", "memory://probe", None, 1)
    assert [each.operation for each in checks if each.status == "failed"] == [
        "compare the clock with snapshots.url"
    ]
    assert fsspec.filesystem("memory").find("/probe") == []


def test_a_stream_that_cannot_be_reached_is_found(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="pip install 'sparring-train[redis]'")
    path = tmp_path / "run.yaml"
    path.write_text(
        "{data: {kind: stream, url: 'redis://127.0.0.1:1/0/clicks', label: clicked, categorical: [user]},"
        " model: {kind: dlrm, embedding_dim: 4}, storage: {backend: memory}}"
    )
    [found] = failures(path)
    assert (found.operation, "127.0.0.1:1" in found.found) == ("read data.url", True)


def test_the_clock_of_redis_is_compared(tmp_path: Path, redis_server: Any) -> None:
    pytest.importorskip("redis", reason="pip install 'sparring-train[redis]'")
    path = tmp_path / "run.yaml"
    path.write_text(
        f"{{data: {{kind: stream, url: 'redis://{redis_server.address}/0/clicks', label: clicked, "
        "categorical: [user]}, model: {kind: dlrm, embedding_dim: 4}, storage: {backend: memory}}"
    )
    checks = list(check_job(JobRequest(str(path)), make_plugin_manager()))
    assert [(each.operation, each.status) for each in checks][-2:] == [
        ("read data.url", "ok"),
        ("compare the clock with data.url", "ok"),
    ]


def test_a_storage_that_cannot_be_reached_is_found(config: Path) -> None:
    pytest.importorskip("sparring_redis", reason="pip install sparring-redis")
    found = failures(config, "storage={backend: redis, options: {url: 'redis://127.0.0.1:1'}}")
    assert [each.operation for each in found] == ["open storage redis"]
