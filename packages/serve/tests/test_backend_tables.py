"""A server with caches in front of a Redis whose rows training continues to change."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import TableConfig, open_storage
from sparring.errors import ConfigError, SparringError
from sparring_cli.application import main
from sparring_serve import LookupClient, RowStatus, open_server, read_serving_config
from sparring_serve.config import ClientConfig

pytest.importorskip("sparring_redis", reason="needs sparring-redis")
pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_train", reason="needs sparring-train")

from sparring_redis.testing.server import RedisServer
from sparring_testing.fixtures.runs import write_ratings
from sparring_testing.processes.waiting import wait_until

KEYS = np.arange(60)
LONG = ClientConfig(deadline_seconds=10.0)

TRAINING = """
seed: 3
threads: 1
data: {kind: table, path: ratings.csv, batch_size: 64, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.1}}
model: {kind: matrix_factorization, dim: 3}
storage:
  backend: tiered
  options:
    tiers:
      - {backend: memory, options: {capacity: 20, policy: lru}}
      - {backend: redis, options: {url: "URL"}}
training: {epochs: 1}
snapshots: {url: run}
change_notes: {every_steps: 2}
"""

SERVING = """
tables:
  item:
    storage:
      backend: tiered
      options:
        tiers:
          - backend: memory
          - {backend: redis, options: {url: "URL", deadline_seconds: 1.0}}
        refresh: {poll_seconds: 0.05, drop_seconds: 0.2}
server: {address: "127.0.0.1:0"}
"""


@pytest.fixture
def redis(
    own_redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RedisServer:
    """A server; the current folder has configurations for it."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    spans = ((1, 40), (0, 60), (1, 6))
    write_ratings(Path("ratings.csv"), *(random.integers(*span, 600) for span in spans))
    for name, text in (("train.yaml", TRAINING), ("serving.yaml", SERVING)):
        Path(name).write_text(text.replace("URL", own_redis_server.url))
    return own_redis_server


def train(*overrides: str) -> None:
    assert main(["train", "train.yaml", *overrides]) == 0


def rows_in(redis: RedisServer) -> Any:
    """Returns embeddings in Redis itself."""
    table = TableConfig("item", 4, state_width=4, state_method="adagrad")
    with open_storage("redis", table, url=redis.url) as storage:
        return storage.find(KEYS).rows[:, :4]


def test_served_rows_follow_training(redis: RedisServer) -> None:
    train()
    command = [sys.executable, "-m", "sparring", "serve", "serving.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            ready = next(line for line in serving.stderr if "ready on" in line)
            address = ready.split("ready on ")[1].split(": step")[0]
            with LookupClient(address, LONG) as client:
                before = client.pull({"item": KEYS}).rows["item"]
                assert (before == rows_in(redis)).all()
                train("training.epochs=3", "snapshots.resume=true")
                after = rows_in(redis)
                assert (after != before).any(axis=1).sum() > 40
                wait_until(lambda: bool((client.pull({"item": KEYS}).rows["item"] == after).all()))
        finally:
            serving.send_signal(signal.SIGTERM)
            try:
                code = serving.wait(timeout=60)
            finally:
                serving.kill()
        assert code == 0


def test_cached_rows_are_answered_while_redis_is_away(redis: RedisServer) -> None:
    train()
    config = read_serving_config("serving.yaml")
    with open_server(config) as server, LookupClient(server.address, LONG) as client:
        expected = client.pull({"item": KEYS[:50]}).rows["item"]
        redis.kill()
        for _ in range(3):
            assert (client.pull({"item": KEYS[:50]}).rows["item"] == expected).all()
        with pytest.raises(SparringError, match=r"Redis|backend"):
            client.pull({"item": KEYS})
        assert not client.pull({"item": np.array([10**12])}).found["item"].any()  # by the filter
        gauges = server.service.tables.gauges
        assert gauges()["cache_hits"] >= 150
        assert gauges()["cache_rows"] == 50
        wait_until(lambda: gauges()["cache_failed_polls"] > 0)
        assert gauges()["cache_behind_seconds"] > 0.05


@pytest.mark.parametrize("missing", ["initial", "zero", "only_found"])
def test_a_client_that_takes_flags_gets_cached_rows_while_redis_is_away(
    missing: str, redis: RedisServer
) -> None:
    train()
    repeated = np.concatenate([KEYS, [10**12], KEYS])
    with open_server(read_serving_config("serving.yaml")) as server:
        flag, initial, stale = (
            LookupClient(server.address, ClientConfig(deadline_seconds=10.0, on_failure=each))
            for each in ("flag", "initial", "stale")
        )
        with flag, initial, stale:
            before = stale.pull({"item": KEYS}).rows["item"]
            has_row = stale.pull({"item": KEYS}).found["item"]
            server.service.tables._storages["item"]._fills.erase(KEYS[50:])
            redis.kill()
            is_left_out = np.isin(repeated, KEYS[50:][has_row[50:]])
            answer = flag.pull({"item": repeated}, missing=missing)
            status, rows = answer.status["item"], answer.rows["item"]
            assert is_left_out.sum() >= 10
            assert ((status == RowStatus.FAILED) == is_left_out).all()
            assert np.isnan(rows[is_left_out]).all()
            assert (answer.answered["item"] == ~is_left_out).all()
            if missing == "initial":
                assert (rows[:50] == before[:50]).all()
            assert status[60] == RowStatus.ABSENT  # the filter knows, without Redis
            given = {"reason": "backend", "given": "failed"}
            assert server.metrics.value("degraded_rows_total", **given) == 10
            assert flag.metrics.value("degraded_rows_total", **given) == 10
            status = initial.pull({"item": KEYS}, missing=missing).status["item"]
            assert (status[is_left_out[:60]] == RowStatus.INITIAL).all()
            for _ in range(2):  # a stale row is not stored as a fresh one
                answer = stale.pull({"item": KEYS}, missing=missing)
                assert (answer.status["item"][is_left_out[:60]] == RowStatus.STALE).all()
                assert (answer.rows["item"][has_row] == before[has_row]).all()
            # If there is no row to send, another replica is called instead.
            assert flag.pull({"item": KEYS[50:]}).version is None


def test_a_version_of_tables_in_a_backend_cannot_be_requested(redis: RedisServer) -> None:
    train()
    with (
        open_server(read_serving_config("serving.yaml")) as server,
        LookupClient(server.address, LONG) as client,
    ):
        assert client.pull({"item": KEYS}).versions[0].step == 9
        with pytest.raises(SparringError, match="which keeps no versions"):
            client.pull({"item": KEYS}, version="abc")


def test_a_table_that_was_not_trained_is_rejected(redis: RedisServer) -> None:
    with pytest.raises(ConfigError, match=r"tables\.item\.storage: there are no change notes"):
        open_server(read_serving_config("serving.yaml"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("snapshots=served", "tables and snapshots are alternative sources of rows"),
        ("server.pin=step-1", r"server\.pin names a version of snapshots"),
        ("tables.item.storage.backend=redis", "must have the backend tiered"),
        ("tables.item.storage.options.refresh.poll_second=1", "poll_second"),
        ("tables.item.storage.options.refresh.poll_seconds=0", "poll_seconds"),
        ("tables.item.storage.options.write=back", "write is an option for stacks"),
        ("tables.item.storage.option={}", "option"),
    ],
)
def test_a_wrong_key_is_rejected_with_its_place(change: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    file.write_text(SERVING.replace("URL", "redis://127.0.0.1:1"))
    with pytest.raises(ConfigError, match=said):
        read_serving_config(file, [change])
