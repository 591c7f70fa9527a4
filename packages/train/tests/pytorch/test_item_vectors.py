"""Versions of retrieval models contain the vectors of all items, of the same step as their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="trains with PyTorch")
pytest.importorskip("sparring_packed.library", reason="needs sparring-packed")
pytest.importorskip("sparring_serve", reason="needs sparring-serve")

import sparring_packed
from sparring import list_snapshots, open_snapshot
from sparring_cli.application import main
from sparring_serve import LookupClient, ServingConfig, open_server
from sparring_train.recommend import served_vectors

CONFIG = """
threads: 1
data: {kind: table, path: visits.csv, categorical: [user, item], separator: "|", batch_size: 8}
model: {kind: two_towers, embedding_dim: 4, layers: [8], normalize: true}
storage: {backend: memory}
snapshots: {url: run, every_steps: 1, full_every: 9, keep: 9}
report: {path: null}
"""


def tower(folder: Path, rows: np.ndarray) -> np.ndarray:
    """Computes vectors with the parameters of a version."""
    found, _ = sparring_packed.decode_parameters((folder / "parameters.safetensors").read_bytes())
    parts = [found[f"item_tower.{n}.{name}"] for n in (0, 2) for name in ("weight", "bias")]
    hidden = np.maximum(rows @ parts[0].T + parts[1], 0)
    vectors = hidden @ parts[2].T + parts[3]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def check_version(folder: Path) -> np.ndarray:
    with sparring_packed.open(folder) as tables:
        keys = np.sort(np.concatenate([keys for keys, _ in tables.scan("item")]))
        vectors = np.sort(np.concatenate([keys for keys, _ in tables.scan("item.vectors")]))
        np.testing.assert_array_equal(vectors, keys)
        found = tables.lookup("item.vectors", keys)
        expected = tower(folder, tables.lookup("item", keys))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert not tables.lookup("item.vectors", [10**9]).any()
    return found


def test_each_version_contains_the_vectors_of_its_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reads: list[str] = []
    read_config = served_vectors._read_config
    monkeypatch.setattr(
        served_vectors,
        "_read_config",
        lambda snapshot, manager: reads.append(snapshot.url) or read_config(snapshot, manager),
    )
    random = np.random.default_rng(3)
    lines = [f"{user},{item}" for user, item in random.integers(0, 30, (48, 2))]
    Path("visits.csv").write_text("\n".join(["user,item", *lines]) + "\n")
    Path("towers.yaml").write_text(CONFIG)
    assert main(["train", "towers.yaml", "training.steps=3"]) == 0
    assert main(["publish", "run", "-o", "served"]) == 0
    [first] = Path("served").glob("step-*")
    before = check_version(first)
    assert main(["train", "towers.yaml", "--resume", "training.steps=4"]) == 0
    newest = open_snapshot(list_snapshots("run")[-1])
    assert main(["publish", "run", "-o", "served", "--quantize", "item.vectors=fp32"]) == 0
    second = Path("served") / newest.name
    assert sparring_packed.read_manifest(second).base is not None
    after = check_version(second)
    assert not np.isin(before, after).all()
    assert len(reads) == 1, "parsing a configuration takes longer than converting a delta"
    config = ServingConfig(snapshots="served")
    with (
        open_server(config, address="127.0.0.1:0") as server,
        LookupClient(server.address) as client,
    ):
        best = client.recommend("item.vectors", after[:5], 1)
        assert best.version.step == 4
        np.testing.assert_allclose(best.scores[:, 0], 1, rtol=1e-5)
    assert main(["publish", "run", "-o", "plain", "--no-item-vectors"]) == 0
    plain = sparring_packed.read_manifest(Path("plain") / newest.name)
    assert [each.name for each in plain.tables] == ["item", "user"]
