"""The version that was published last is the newest one, also if its step is lower."""

from __future__ import annotations

import json
import shutil
import uuid
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from sparring import (
    ScanChunk,
    SnapshotWriter,
    StepContainer,
    StorageChoice,
    TableConfig,
    TableDescription,
)
from sparring.errors import SnapshotError
from sparring_serve import ClientConfig, LookupClient
from sparring_serve.publishing.publisher import (
    PublisherOptions,
    close_gate,
    find_merge,
    merge_layers,
    pin,
    publish_newest,
)
from sparring_serve.server.native_front_end import encode_settings
from sparring_serve.testing.front_ends import ONE_SHARD, make_config
from sparring_testing.faults.damaged_file import flip_byte

from .conftest import Serve

sparring_packed = pytest.importorskip("sparring_packed")

ALL = PublisherOptions({}, keep=9)


class Runs:
    """Runs that publish into one folder; all elements of a row are the step."""

    def __init__(self, path: Path) -> None:
        self.path, self.out = path, path / "served"
        self.served = str(self.out)

    def publish(
        self, run: str, step: int, *, over: int | None = None, options: PublisherOptions = ALL
    ) -> str:
        """Returns the name of the version."""
        published = publish_newest(self.save(run, step, over), self.out, options)
        assert published is not None
        return Path(published.written.url).name

    def save(self, run: str, step: int, over: int | None = None) -> str:
        base = None if over is None else f"{self.path}/{run}/step-{over:09d}"
        writer = SnapshotWriter(f"{self.path}/{run}/step-{step:09d}", step=step, base=base)
        keys = np.array([0, 1, 2, sum(run.encode())])  # runs have different rows
        rows = np.full((len(keys), 4), step, np.float32)
        chunk = ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))
        writer.write_table(TableDescription.of(TableConfig("item", 4)), [chunk])
        writer.finish()
        writer.commit()
        return str(self.path / run)

    def step(self) -> int:
        """Returns the step that a reader of the folder uses, after a check of its rows."""
        with sparring_packed.open(self.out) as tables:
            step: int = tables.version.step
            assert set(tables.lookup("item", [0, 1, 2]).flat) == {step}
            return step


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


@pytest.mark.parametrize("keep", [2, 9])
@pytest.mark.parametrize("step", [500, 2000])
def test_a_run_with_lower_steps_is_served(
    runs: Runs, keep: int, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = PublisherOptions({}, keep=keep)
    for earlier in (1000, 2000):
        runs.publish("first", earlier, options=options)
    with sparring_packed.open(runs.out) as tables:
        name = runs.publish("again", step, options=options)
        assert tables.refresh()
        assert tables.version.step == step
    assert f"step {step:,}, follows step-000002000, step 2,000" in caplog.text
    assert (runs.out / name).is_dir()
    # Later versions of both runs follow in the order of their publication.
    for run, later in (("again", step + 10), ("first", 3000), ("again", step + 20)):
        runs.publish(run, later, options=options)
        assert runs.step() == later
    assert publish_newest(runs.path / "again", runs.out, options) is None


def test_a_folder_with_ascending_steps_keeps_the_format(runs: Runs) -> None:
    names = [runs.publish("run", step) for step in (1, 2, 3)]
    assert names == ["step-000000001", "step-000000002", "step-000000003"]
    for name in names:
        text = (runs.out / name / "manifest.json").read_text()
        assert json.loads(text)["version"] == 1
        assert "generation" not in text


def test_readers_without_generations_find_a_newest_version_that_they_reject(runs: Runs) -> None:
    names = [runs.publish("first", 1000), runs.publish("again", 500), runs.publish("third", 7)]
    # They compare the names of versions whose format they do not know with the newest known one.
    assert names == sorted(names)
    versions = [json.loads((runs.out / name / "manifest.json").read_text()) for name in names]
    assert [each["version"] for each in versions] == [1, 3, 3]
    assert [each.get("generation") for each in versions] == [None, 1, 2]


def test_deltas_and_merged_versions_stay_in_their_generation(runs: Runs) -> None:
    runs.publish("first", 1000)
    runs.publish("again", 10)
    options = PublisherOptions(
        {}, keep=9, full_every=3, max_delta_share=9.0, merges_separately=True
    )
    delta = runs.publish("again", 20, over=10, options=options)
    delta = runs.publish("again", 30, over=20, options=options)
    assert sparring_packed.read_manifest(runs.out / delta).base is not None
    assert find_merge(runs.out, options) == delta
    merged = Path(merge_layers(runs.out, delta).url).name
    assert (merged, runs.step()) == (f"{delta}-002", 30)
    with sparring_packed.open(runs.out) as tables:
        assert tables.num_layers == 1
    runs.publish("again", 40, over=30, options=options)
    assert runs.step() == 40


def test_other_data_types_are_published_in_the_same_generation(runs: Runs) -> None:
    runs.publish("first", 1000)
    name = runs.publish("again", 10)
    options = PublisherOptions({"item": "fp16"}, keep=9)
    again = publish_newest(runs.path / "again", runs.out, options)
    assert again is not None
    assert Path(again.written.url).name == f"{name}-002"
    assert runs.step() == 10


def test_a_published_version_that_is_not_the_newest_is_pinned_instead(runs: Runs) -> None:
    for step in (1000, 2000):
        runs.publish("run", step)
    assert publish_newest(runs.path / "run", runs.out, ALL) is None
    older = runs.path / "run" / "step-000001000"
    with pytest.raises(SnapshotError, match=r"step 1,000, is already .*step-000002000.*--pin step"):
        publish_newest(older, runs.out, ALL)
    pin(runs.out, "step-000001000")
    assert publish_newest(older, runs.out, ALL) is None
    assert runs.step() == 1000


def test_the_gate_pins_a_version_of_the_newest_generation(runs: Runs) -> None:
    for run, step in (("first", 100), ("first", 1000), ("again", 90), ("again", 200)):
        runs.publish(run, step)
    gate = close_gate(runs.out, "losses", 100)
    assert gate.pin == "version-000001.step-000000090"
    assert runs.step() == 90


@pytest.mark.parametrize(
    ("good_step", "bad", "pinned"),
    [
        (50, [], "step-000001000"),  # not step 20 of the earlier run
        (250, [range(80, 400)], "step-000001000"),
        (250, [range(150, 400)], "version-000001.step-000000090"),
        (None, [], ""),
    ],
)
def test_the_gate_does_not_compare_steps_of_different_runs(
    runs: Runs, good_step: int | None, bad: list[range], pinned: str
) -> None:
    for run, step in (("first", 20), ("first", 1000), ("again", 90), ("again", 200)):
        runs.publish(run, step)
    assert close_gate(runs.out, "losses", good_step, bad).pin == pinned


def test_the_version_that_the_gate_would_pin_is_kept(runs: Runs) -> None:
    for run, step in (("first", 20), ("first", 1000), ("again", 90), ("again", 200)):
        runs.publish(run, step)
    runs.publish("again", 300, options=PublisherOptions({}, keep=2, keep_steps=(50,)))
    assert close_gate(runs.out, "losses", 50).pin == "step-000001000"


def test_versions_follow_unreadable_ones_with_greater_names(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(name: str) -> None:
        flip_byte(runs.out / name / "manifest.json", -9)

    damage(runs.publish("only", 1000))
    assert runs.publish("other", 5) == "version-000001.step-000000005"
    assert runs.step() == 5
    assert "step 5, follows no readable version, and the unreadable version step-0" in caplog.text
    damage(runs.publish("second", 3))
    for step in (2000, 2010):
        runs.publish("other", step)
        assert runs.step() == step
    # The newest readable version is published again if readers reject the folder.
    shutil.copytree(runs.out / "step-000001000", runs.out / "version-000004.step-000000001")
    assert publish_newest(runs.path / "other", runs.out, ALL) is not None
    assert runs.step() == 2010
    assert publish_newest(runs.path / "other", runs.out, ALL) is None


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_name_that_no_generation_exceeds_is_rejected(runs: Runs, is_damaged: bool) -> None:
    runs.save("first", 1000)
    (runs.path / "first" / "step-000001000").rename(runs.path / "first" / "warm")
    publish_newest(runs.path / "first" / "warm", runs.out, ALL)
    if is_damaged:
        flip_byte(runs.out / "warm" / "manifest.json", -9)
    with pytest.raises(SnapshotError, match=r"contains warm, whose .*move warm out of this one"):
        runs.publish("again", 5)
    (runs.out / "warm").rename(runs.path / "warm")
    assert publish_newest(runs.path / "again", runs.out, ALL) is not None
    assert runs.step() == 5


@pytest.mark.parametrize("damage", ["rows.item.*", "manifest.json"])
def test_servers_order_versions_by_publication(
    runs: Runs, kind: str, open_servers: Serve, damage: str
) -> None:
    for run, step in (("first", 1000), ("again", 20), ("again", 30)):
        name = runs.publish(run, step)
    server = open_servers(kind, runs)
    runs.publish("third", 5)
    with LookupClient(server.address, ClientConfig(deadline_seconds=9.0)) as client:
        assert set(client.pull({"item": [0]}).rows["item"].flat) == {30}
        assert server.refresh().is_new
        assert set(client.pull({"item": [0]}).rows["item"].flat) == {5}
    server.close()
    # The newest intact version is used, not the one with the highest step.
    for version in (name, runs.publish("third", 6), "version-000002.step-000000005"):
        [file] = (runs.out / version).glob(damage)
        flip_byte(file, -1)
    server = open_servers(kind, runs)
    assert "version-000001.step-000000020, step 20, is served" in "".join(server.lines)
    with LookupClient(server.address, ClientConfig(deadline_seconds=9.0)) as client:
        assert set(client.pull({"item": [0]}).rows["item"].flat) == {20}


def test_copies_of_remote_versions_are_ordered_by_publication(runs: Runs, tmp_path: Path) -> None:
    url = f"memory://order/{uuid.uuid4().hex}"
    system = fsspec.filesystem("memory")
    runs.publish("first", 1000)

    def upload() -> None:
        system.put(str(runs.out), url.removeprefix("memory:/"), recursive=True)

    with ExitStack() as closing:
        upload()
        tables = closing.enter_context(
            sparring_packed.open(url, cache=tmp_path / "cache", keep_versions=1)
        )
        for step in (20, 30):
            runs.publish("again", step)
            system.rm(url.removeprefix("memory:/"), recursive=True)
            upload()
            assert tables.refresh()
            assert tables.version.step == step


def test_the_native_server_gets_the_initial_values_of_the_newest_version(runs: Runs) -> None:
    def settings() -> list[str]:
        position = SimpleNamespace(shards=ONE_SHARD, shard=0)
        text = encode_settings(make_config(runs), position, "127.0.0.1:0", "info")  # type: ignore[arg-type]
        return [line for line in text.splitlines() if line.startswith("initial_values")]

    runs.publish("first", 1000)
    before = settings()
    with StepContainer() as container:
        container.declare(TableConfig("item", 4, seed=5), StorageChoice("memory"))
        container.counters.steps = 7
        container.save(f"{runs.path}/other/step-000000007")
    publish_newest(runs.path / "other", runs.out, ALL)
    assert settings() != before
