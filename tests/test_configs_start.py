"""Tests that every file in ``configs/`` trains unchanged, with small data where it expects them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from sparring import latest_snapshot, scan_rows
from sparring.adapter import BUILTIN_METHODS
from sparring_cli.application import main
from sparring_testing.devices import why_unavailable
from sparring_testing.fixtures.runs import RunCommand, write_ratings
from sparring_testing.processes.waiting import free_ports, wait_until
from sparring_train.config.reading.loader import load_config

ROOT = Path(__file__).resolve().parents[1]
SERVING = ROOT / "configs/serving.yaml"
PARAMETERS = ROOT / "configs/parameters.yaml"
FOLLOWERS = ROOT / "configs/followers.yaml"
SLOW = ("criteo", "gpu", "live", "sequence")
CONFIGS = sorted(set((ROOT / "configs").glob("*.yaml")) - {SERVING, PARAMETERS, FOLLOWERS})
STEPS = 6
GPU_BYTES = 80e9

PACKAGES = {
    "hkv": ["sparring_hkv"],
    "memory": [],
    "redis": ["sparring_redis"],
    "rocksdb": ["sparring_rocksdb"],
    "tiered": ["sparring_tiered"],
    "torch": ["sparring_torch"],
    "tensorflow": ["tensorflow", "sparring_tf"],
}

Train = Callable[[Path], dict[str, Any]]


@pytest.fixture
def train(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_sparring: RunCommand,
    request: pytest.FixtureRequest,
) -> Train:
    """Runs ``sparring train`` on a copy in a separate folder; returns its last line of output."""

    def run(path: Path) -> dict[str, Any]:
        folder = tmp_path / path.stem
        copied = copy_of(path, folder)
        monkeypatch.chdir(folder)
        overrides = [f"training.steps={STEPS}", "threads=1", *adapted(copied, request)]
        ended = run_sparring("train", copied, *overrides, "--json")
        assert ended.code == 0, ended.err
        result: dict[str, Any] = ended.last_json
        return result

    return run


def copy_of(path: Path, folder: Path) -> Path:
    """Copies a config to ``configs`` in a folder, so that its relative paths stay in there."""
    copied = folder / "configs" / path.name
    copied.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(path, copied))


def adapted(path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Writes the data that a config reads; returns the necessary overrides."""
    config = load_config(path)
    for each in PACKAGES[config.framework]:
        pytest.importorskip(each)
    random, data, overrides = np.random.default_rng(5), config.data, []
    if data.kind == "table" and data.column_names is None:
        # Almost as many items as ratings: more than the first tiers can store.
        users, items = random.integers(0, 60, 6_000), random.integers(0, 10**9, 6_000)
        ratings = write_ratings(Path(data.path), users, items, (users + items) % 9 / 2 + 1)
        ratings.write_text(ratings.read_text().replace("user,item", "userId,movieId", 1))
        if config.model.kind == "sequence":
            overrides.append("data.batch_size=64")
    elif data.kind == "stream":
        url = request.getfixturevalue("stream_of_clicks")
        # No server is notified.
        overrides += [f"data.url={url}", "data.batch_size=64", "publish.notify=[]"]
    elif data.kind == "table":
        # A label, 13 integers and 26 hexadecimal ids, some of them missing.
        integers = random.integers(0, 90, (400, 13)).astype(str)
        ids = np.vectorize("{:08x}".format)(random.integers(0, 50, (400, 26)))
        values = np.hstack([integers, ids])
        values[(values == "0") | (values == "00000000")] = ""
        rows = np.hstack([random.integers(0, 2, (400, 1)).astype(str), values])
        Path(data.path).write_text("".join("\t".join(row) + "\n" for row in rows.tolist()))
        overrides += ["data.batch_size=64"]
    else:
        overrides += ["data.samples=20000", "data.test_samples=500"]
    storages = [("storage", config.storage.backend, config.storage.options)]
    for place, tier in enumerate(config.storage.options.get("tiers", ())):
        below = {"backend": tier} if isinstance(tier, str) else tier
        where = f"storage.options.tiers.{place}"
        storages.append((where, below["backend"], below.get("options", {})))
    for where, backend, options in storages:
        for each in PACKAGES[backend]:
            pytest.importorskip(each)
        if backend == "redis":
            url = request.getfixturevalue("own_redis_server").url
            overrides.append(f"{where}.options.url={url}")
        if options.get("device") == "cuda":
            device = "cuda" if why_unavailable("cuda") is None else "emulated"
            if reason := why_unavailable(device):
                pytest.skip(f"needs a GPU, or its emulator: {reason}")
            overrides += [f"{where}.options.device={device}", f"{where}.options.capacity=2000"]
            # Less than the memory of 2,000 rows and their index, so that some are in pinned memory.
            overrides.append(f"{where}.options.device_memory_bytes=300000")
    return overrides


@pytest.fixture
def stream_of_clicks(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a stream of Redis with as many messages as steps."""
    redis = pytest.importorskip("redis")
    url, random = request.getfixturevalue("own_redis_server").url, np.random.default_rng(7)
    with redis.Redis.from_url(url) as client:
        for number in range(STEPS):
            users, items, labels = random.integers(0, (20, 5, 2), (64, 3)).T
            columns = {"user": users, "item": items, "clicked": labels}
            message = pyarrow.RecordBatch.from_pydict(
                {**columns, "time": np.full(64, 2.0 * number)}
            )
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, message.schema) as writer:
                writer.write_batch(message)
            client.xadd("clicks", {"value": sink.getvalue().to_pybytes()})
        yield f"{url}/0/clicks"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(each, marks=pytest.mark.slow if each.stem in SLOW else [], id=each.name)
        for each in CONFIGS
    ],
)
def test_a_config_trains_unchanged(path: Path, train: Train) -> None:
    result = train(path)
    config = load_config(Path.cwd() / "configs" / path.name)
    assert result["steps"] == STEPS
    assert all(result["rows"].values()), result["rows"]
    assert result["metrics"] or not config.data.has_test
    assert all(math.isfinite(value) for value in result["metrics"].values()), result["metrics"]
    named = [
        tier if isinstance(tier, str) else tier["backend"]
        for tier in config.storage.options.get("tiers", ())
    ]
    for tiers in result.get("tiers", {"": []} if named else {}).values():
        assert [tier["backend"] for tier in tiers] == named
    if config.report.path is not None:
        assert Path(config.report.path).stat().st_size > 1000


def test_the_parameters_config_learns_from_pushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = pytest.importorskip("sparring_serve")
    monkeypatch.chdir(tmp_path)
    config = serving.read_serving_config(copy_of(PARAMETERS, tmp_path))
    with ExitStack() as started:
        servers = [
            started.enter_context(
                serving.open_parameter_server(config, shard=each, address="127.0.0.1:0")
            )
            for each in range(len(config.shards))
        ]
        addresses = [[each.address] for each in servers]
        client = started.enter_context(serving.ParameterClient(addresses, config.client))
        ids, gradients = np.arange(100), np.ones((100, 16), np.float32)
        before = client.pull({"user": ids}, deadline_seconds=9).rows["user"]
        for _ in range(2):
            client.push({"user": (ids, gradients), "item": (ids, gradients)}, wait="applied")
        assert (client.pull({"user": ids}, deadline_seconds=9).rows["user"] < before).all()
        rows = client.describe(deadline_seconds=9).shards.values()
        assert sum(table.rows for each in rows for table in each.tables) == 200


def test_the_config_with_followers_has_pushes_on_two_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    serving = pytest.importorskip("sparring_serve")
    store = request.getfixturevalue("own_redis_server")
    monkeypatch.chdir(tmp_path)
    copied = copy_of(FOLLOWERS, tmp_path)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ExitStack() as started:
        text = copied.read_text().replace("redis://127.0.0.1:7440/0", store.url)
        for number, address in enumerate(addresses):
            text = text.replace(f"127.0.0.1:{7441 + number}", address)
        copied.write_text(text)
        config = serving.read_serving_config(copied)
        servers = [serving.open_parameter_server(config, replica=each) for each in range(2)]
        for each in servers:
            started.enter_context(each)
        client = started.enter_context(serving.ParameterClient([addresses], config.client))
        gradients = {"item": (np.arange(100), np.ones((100, 16), np.float32))}
        # Without a follower in sync, the push waits and then fails.
        assert client.push(gradients, deadline_seconds=120).unreplicated == ()
        gauges = [each.changes.replication.gauges for each in servers]
        leader = next(place for place in range(2) if gauges[place]()["is_leader"])
        assert gauges[leader]()["lacks_follower"] == 0
        servers[1 - leader].close()
        # The alarm SparringNoFollower.
        wait_until(lambda: gauges[leader]()["lacks_follower"], 120)


def test_the_serving_config_serves_the_result_of_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = pytest.importorskip("sparring_serve")
    pytest.importorskip("sparring_packed")
    pytest.importorskip("sparring_torch")
    pytest.importorskip("sparring_hkv")
    monkeypatch.chdir(tmp_path)
    small = [f"training.steps={STEPS}", "data.samples=20000", "data.test_samples=500"]
    quickstart = str(copy_of(ROOT / "configs/quickstart.yaml", tmp_path))
    assert main(["train", quickstart, "snapshots.url=runs/quickstart", *small, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    config = serving.read_serving_config(copy_of(SERVING, tmp_path))
    assert main(["publish", "runs/quickstart", "--output", config.snapshots]) == 0
    with (
        serving.open_server(config, address="127.0.0.1:0") as server,
        serving.LookupClient(server.address, config.client) as client,
    ):
        described = client.describe(deadline_seconds=9).shards[0].tables
        assert {each.name: each.rows for each in described} == rows
        trained = latest_snapshot("runs/quickstart")
        assert trained is not None
        for chunk in scan_rows(trained, "cat_3", range(4096)):
            answer = client.pull({"cat_3": chunk.keys}, deadline_seconds=9)
            assert answer.versions[0].step == STEPS
            assert answer.found["cat_3"].all()
            assert np.array_equal(
                answer.rows["cat_3"], chunk.rows[:, : answer.rows["cat_3"].shape[1]]
            )


def test_tables_of_the_gpu_example_fit_one_gpu_and_spill() -> None:
    if reason := why_unavailable("emulated"):
        pytest.skip(f"needs the emulator of a GPU: {reason}")
    from sparring_hkv.backend import HkvStorage
    from sparring_hkv.options import HkvOptions

    config = load_config(ROOT / "configs/gpu.yaml")
    method = BUILTIN_METHODS[config.optimizer.sparse.name]()
    tables = [
        each.with_state(method.state_width(each.dim), method.name) for each in config.list_tables()
    ]
    options = config.storage.options["tiers"][0]["options"]
    budget, pinned = options["device_memory_bytes"], 0
    for table in tables:
        # A small table shows the bytes per row, including the index; both are allocated in full.
        with HkvStorage(
            table, HkvOptions(device="emulated", capacity=1 << 14, policy="lru")
        ) as small:
            needed = small.memory_bytes / (1 << 14) * options["capacity"]
        assert needed > budget, "no row would be in pinned memory"
        pinned += needed - budget
    assert len(tables) == 26
    # A quarter of the GPU is left for the model, batches and the framework.
    assert len(tables) * budget < 0.75 * GPU_BYTES
    assert pinned < GPU_BYTES / 4


STORED = [each for each in CONFIGS if each.stem.partition("-")[0] in ("redis", "rocksdb", "tiered")]


@pytest.mark.parametrize(
    "path",
    [
        each if each.stem == "tiered" else pytest.param(each, marks=pytest.mark.slow)
        for each in STORED
    ],
    ids=lambda path: path.name,
)
def test_the_storage_of_a_config_does_not_change_the_results(path: Path, train: Train) -> None:
    kept, plain = train(path), train(ROOT / "configs/movielens.yaml")
    assert kept["metrics"] == plain["metrics"]
    assert kept["rows"] == plain["rows"]
    if "tiers" in kept:
        assert kept["tiers"]["item"][0]["evictions"] > 0
