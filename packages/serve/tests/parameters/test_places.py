"""Snapshots of a service on other file systems: S3 by moto, and a server that speaks WebHDFS."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparring import list_snapshots, open_snapshot
from sparring.errors import SnapshotError
from sparring_cli import verify_snapshot

from .conftest import IDS, MakeShards, OneProcess, made_gradients
from .fake_webhdfs import fake_webhdfs


@pytest.fixture
def webhdfs() -> Iterator[str]:
    pytest.importorskip("fsspec", reason="opens URLs")
    pytest.importorskip("requests", reason="fsspec's WebHDFS needs it")
    with fake_webhdfs() as url:
        yield url


@pytest.mark.parametrize(
    "kind",
    # Packed mirrors read from S3 in a faster test.
    [pytest.param("s3_bucket", marks=pytest.mark.slow), "webhdfs"],
)
def test_all_shards_save_to_and_load_from_it(
    make_shards: MakeShards, one_process: OneProcess, request: pytest.FixtureRequest, kind: str
) -> None:
    folder = f"{request.getfixturevalue(kind)}/runs/a"
    shards = make_shards(2, folders=[folder])
    with shards.client() as client:
        for seed in range(2):
            client.push(made_gradients(seed), wait="applied")
            one_process.push(made_gradients(seed))
        saved = client.save()
        assert saved.url == f"{folder}/step-000000000002"
        assert not verify_snapshot(open_snapshot(saved.url)).problems
        shards.fault = lambda send: "cut" if send.address == "shard:1" else ""
        with pytest.raises(SnapshotError, match="shard 2 of 2 at shard:1"):
            client.save("other")
    assert list_snapshots(folder) == [saved.url]
    later = make_shards(3, folders=[folder], start="newest")
    for each in later.services.values():
        each.shard.start()
    expected = one_process.rows(IDS)
    for name, rows in later.rows(IDS).items():
        assert (rows == expected[name]).all()
