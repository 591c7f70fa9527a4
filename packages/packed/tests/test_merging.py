"""Deltas that are merged into full serving snapshots."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import sparring_packed
from sparring.errors import SnapshotDamagedError, SnapshotError
from sparring_packed import WriteOptions, mirror
from sparring_packed.library import DTYPES

IDS = np.arange(-3_000, 3_000)
MODEL = {"parameters": os.urandom(400), "preprocessing": b"{}".ljust(300)}


@pytest.fixture
def chain(training: Any, request: pytest.FixtureRequest) -> Any:
    """Five versions of which the last four are deltas, stored as the parameter."""
    random, options = np.random.default_rng(3), WriteOptions(file_bytes=1 << 16, model=MODEL)
    keys = random.choice(IDS, 4_000, replace=False)
    training.train(keys, quantize={"item": request.param}, options=options)
    for _ in range(4):
        erased = random.choice(IDS, 200, replace=False).tolist()
        training.train(random.choice(IDS, 300), erased, options=WriteOptions(model=MODEL))
    return training


@pytest.mark.parametrize("chain", DTYPES, indirect=True)
def test_a_merged_version_has_the_stored_bytes_of_the_chain(chain: Any) -> None:
    merged = f"{chain.served_url()}-002"
    result = sparring_packed.merge(chain.served_url(), merged, file_bytes=1 << 16)
    assert result.num_rows == {"item": len(chain.rows)}
    assert result.step == chain.step
    with (
        sparring_packed.open(chain.served_url()) as layers,
        sparring_packed.open(merged, verify="all") as one,
    ):
        assert (layers.num_layers, one.num_layers) == (5, 1)
        found = [each.pull({"item": IDS}, dtype="stored") for each in (layers, one)]
        assert found[0].rows["item"].tobytes() == found[1].rows["item"].tobytes()
        assert found[0].found["item"].tolist() == found[1].found["item"].tolist()
        for kind, content in MODEL.items():
            assert one.read_model(kind).content == content
    manifest = sparring_packed.read_manifest(merged)
    files = [each for each in manifest.files if each.kind == "rows"]
    assert len(files) > 1, "the windows of partitions were not tested"
    # A delta on it contains the changes since the merged delta was trained.
    chain.save(chain.draw([1, 10**9], 9), [2, 3])
    written = chain.publish(base=merged, options=WriteOptions(model=MODEL))
    assert (written.num_rows, written.num_erased) == ({"item": 2}, {"item": 2})
    with sparring_packed.open(chain.served_url()) as tables:
        assert tables.find("item", [1, 10**9, 2, 3]).found.tolist() == [True, True, False, False]


@pytest.mark.parametrize("chain", ["fp32"], indirect=True)
def test_files_in_object_storage_are_copied_once(
    chain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    folder = f"/merging/{uuid.uuid4().hex}"
    system.put(str(chain.served), folder, recursive=True)
    [*_, newest] = sorted(each.name for each in chain.served.iterdir() if each.is_dir())
    copied: list[str] = []
    download = mirror._download

    def note(url: str, names: list[str], to: Path) -> None:
        copied.extend(f"{url}/{name}" for name in names)
        download(url, names, to)

    monkeypatch.setattr(mirror, "_download", note)
    url = f"memory:/{folder}/{newest}"
    result = sparring_packed.merge(url, f"{url}-002", file_bytes=1 << 16)
    assert result.num_rows == {"item": len(chain.rows)}
    assert len(copied) == len(set(copied)) > 5


@pytest.mark.parametrize("chain", ["fp32"], indirect=True)
def test_a_damaged_base_is_not_merged(chain: Any) -> None:
    url, merged = chain.served_url(), Path(f"{chain.served_url()}-002")
    [file, *_] = sorted(Path(chain.served_url(1)).glob("rows*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SnapshotDamagedError, match=file.name):
        sparring_packed.merge(url, merged)
    assert not merged.exists()
    data[-1] ^= 1
    file.write_bytes(data)
    sparring_packed.merge(url, merged)
    with pytest.raises(SnapshotError, match="already exists"):
        sparring_packed.merge(url, merged)
