"""A server with a damaged newest version serves the newest intact one, and reports it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupServer,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.tables import packed as packed_tables_module
from sparring_serve.tables.packed import open_packed_tables
from sparring_serve.testing.front_ends import ITEM, USER, Folder, call, pull, read_metrics
from sparring_serve.wire.messages import SERVICE
from sparring_testing.faults.damaged_file import flip_byte

from .conftest import Serve

LONG = ClientConfig(deadline_seconds=9.0)
KEYS = np.arange(50, dtype=np.int64)
PLACE = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))


class Served:
    """A folder of serving snapshots; every element of a row of step s is s."""

    def __init__(self, folder: Path) -> None:
        self.path = self.folder = folder
        self.served = self.out = str(folder / "served")

    def publish(self, step: int, base: int | None = None) -> Path:
        run = f"{self.folder}/run/step-{step}"
        writer = SnapshotWriter(
            run, step=step, base=None if base is None else f"{self.folder}/run/step-{base}"
        )
        rows = np.full((len(KEYS), 4), step, np.float32)
        table = TableDescription.of(TableConfig("item", 4))
        writer.write_table(table, [ScanChunk(KEYS, rows, np.zeros(len(KEYS), np.uint64))])
        writer.finish()
        writer.commit()
        over = None if base is None else f"{self.out}/step-{base}"
        sparring_packed.write(run, f"{self.out}/step-{step}", base=over)
        return self.folder / "served" / f"step-{step}"

    def config(self, **server: Any) -> ServingConfig:
        options = ServerConfig(**{"poll_seconds": 3600, **server})
        return ServingConfig(snapshots=self.out, server=options)

    def serve(self, **server: Any) -> LookupServer:
        config = self.config(**server)
        return LookupServer(open_packed_tables(config, PLACE), config, PLACE, "127.0.0.1:0")


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def rows_file(version: Path) -> Path:
    [rows] = version.glob("rows.item.*")
    return rows


def replace_base(version: Path) -> None:
    """Puts another version in the place of the base of a delta."""
    shutil.rmtree(version.with_name("step-2"))
    shutil.copytree(version.with_name("step-1"), version.with_name("step-2"))


def steps(client: LookupClient) -> set[float]:
    return set(client.pull({"item": KEYS}).rows["item"].flat)


@pytest.mark.parametrize(
    ("damage", "served_base"),
    [
        pytest.param(lambda version: flip_byte(rows_file(version), -1), "", id="flipped rows"),
        pytest.param(
            lambda version: flip_byte(version / "manifest.json"), "", id="flipped manifest"
        ),
        pytest.param(lambda version: rows_file(version).unlink(), "", id="removed rows"),
        pytest.param(
            lambda version: shutil.rmtree(version.with_name("step-2")), "step-1", id="removed base"
        ),
        # The base that was replaced is a copy of version 1.
        pytest.param(replace_base, "step-2", id="replaced base"),
    ],
)
def test_the_newest_intact_version_is_served_and_the_rest_is_reported(
    kind: str, open_servers: Serve, served: Served, damage: Callable[[Path], None], served_base: str
) -> None:
    served.publish(1)
    if served_base:
        served.publish(2)
    damage(served.publish(3, base=2 if served_base else None))
    server = open_servers(kind, served)
    with LookupClient(server.address, LONG) as client:
        assert steps(client) == {1}
        log = "".join(server.lines)
        assert "the newest version cannot be served" in log
        assert f"server.pin={served_base or 'step-1'} serves no other" in log
        counted = read_metrics(server)
        assert counted['refreshes_total{result="refused"}'] == 1
        assert counted["is_behind"] == 1
        assert client.describe().shards[0].not_fresh in log
        assert client.describe().shards[0].not_fresh
        assert server.refresh().refused
        served.publish(4)
        assert server.refresh().is_new
        assert steps(client) == {4}
        assert read_metrics(server)["is_behind"] == 0
        assert client.describe().shards[0].not_fresh == ""
        served.publish(5)
        assert server.refresh().is_new
        assert steps(client) == {5}


def test_a_damaged_newer_version_is_rejected_until_a_newer_one_arrives(
    kind: str, open_servers: Serve, served: Served
) -> None:
    served.publish(1)
    server = open_servers(kind, served)
    assert read_metrics(server)["is_behind"] == 0
    flip_byte(rows_file(served.publish(2)), -1)
    refused = server.refresh().refused
    with LookupClient(server.address, LONG) as client:
        assert "step-2" in refused
        assert client.describe().shards[0].not_fresh == refused
        assert steps(client) == {1}
        assert read_metrics(server)["is_behind"] == 1
        served.publish(3)
        assert server.refresh().is_new
        assert steps(client) == {3}


def test_other_tables_are_rejected_after_a_damaged_version(serve: Serve, folder: Folder) -> None:
    manifest = folder.publish(2) / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes()[:-2])
    server = serve()
    folder.publish(3, tables=(ITEM, USER, TableConfig("zone", 3)))
    refused = server.refresh().refused
    assert refused == (
        "serving snapshot step-3 has the tables item, user, zone, but item, user are served; restart "
        "the server"
    )
    assert call(server.address, f"{SERVICE}/Pull", pull(("zone", [1])))[0] == "NOT_FOUND"
    assert call(server.address, f"{SERVICE}/Pull", pull(("item", [1])))[0] == "OK"


def test_a_repaired_version_is_served_after_a_minute(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.publish(1)
    newest = served.publish(2)
    flip_byte(rows_file(newest), -1)
    tried: list[str] = []
    opened = sparring_packed.open
    monkeypatch.setattr(
        packed_tables_module.sparring_packed,
        "open",
        lambda url, **options: tried.append(url) or opened(url, **options),
    )
    with served.serve() as server, LookupClient(server.address, LONG) as client:
        flip_byte(rows_file(newest), -1)
        num_tried = len(tried)
        # Every byte of a version is hashed to find damage, so not in every check.
        assert "damaged" in server.refresher.refresh().refused
        assert len(tried) == num_tried
        monkeypatch.setattr(packed_tables_module, "_RETRY_SECONDS", 0)
        assert server.refresher.refresh().is_new
        assert steps(client) == {2}


def test_a_pinned_version_that_is_damaged_is_an_error_that_names_server_pin(
    served: Served,
) -> None:
    served.publish(1)
    flip_byte(rows_file(served.publish(2)), -1)
    with pytest.raises(
        SnapshotError, match=r"server\.pin=step-2 selects this version: select another"
    ):
        served.serve(pin="step-2")


@pytest.mark.parametrize("name", ["", "..", "../served", "step-1/"])
def test_a_pin_that_is_not_a_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=r"server\.pin must be the name of a folder in served"):
        ServingConfig(server=ServerConfig(pin=name))


def test_a_server_without_an_intact_version_does_not_start(served: Served) -> None:
    flip_byte(rows_file(served.publish(1)), -1)
    flip_byte(served.publish(2) / "manifest.json")
    with pytest.raises(SnapshotError, match=r"step-2.*write a serving snapshot: sparring publish"):
        served.serve()


def test_a_folder_that_disappears_while_a_server_starts_is_named(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.publish(1)
    opened = sparring_packed.open

    def open_and_remove(*arguments: Any, **options: Any) -> Any:
        packed = opened(*arguments, **options)
        shutil.rmtree(served.out)
        return packed

    monkeypatch.setattr(packed_tables_module.sparring_packed, "open", open_and_remove)
    with pytest.raises(SnapshotError, match=r"step-1 was opened in .* no longer exists"):
        served.serve()


def test_versions_at_a_url_are_served_equally(served: Served, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="opens URLs")
    served.publish(1)
    damaged = served.publish(2)
    flip_byte(rows_file(damaged), -1)
    url = f"memory://{tmp_path.name}/served"
    system = fsspec.filesystem("memory")

    def upload() -> None:
        system.put(f"{served.out}/", f"{url.removeprefix('memory://')}/", recursive=True)

    upload()
    local, served.out = served.out, url
    with (
        served.serve(cache=tmp_path / "copies") as server,
        LookupClient(server.address, LONG) as client,
    ):
        assert steps(client) == {1}
        assert server.metrics.gauges()["is_behind"] == 1
        served.out = local
        served.publish(3)
        upload()
        assert server.refresher.refresh().is_new
        assert steps(client) == {3}


def test_a_configuration_that_opens_no_version_is_reported_unchanged(served: Served) -> None:
    served.out = "memory://nothing/served"
    with pytest.raises(InvalidArgumentError, match=r"server\.cache"):
        served.serve()
