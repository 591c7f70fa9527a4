"""`sparring get` and `sparring erase`: rows that a run has left, shown and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.cli.application import main
from sparring.snapshot.chain import merged_chunks
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import latest_snapshot, list_snapshots

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

PERSON = 7_777_777_777_777_001
OTHERS = [7_777_777_777_777_001 + each for each in range(1, 9)]

CONFIG = """
seed: 3
data: {kind: movielens, path: ratings.csv, batch_size: 16, test_fraction: 0.05}
model: {kind: matrix_factorization, dim: 3}
tables: {overrides: {user: {admission: {kind: bloom, k: 1}}}}
storage: STORAGE
snapshots: {url: runs, every_steps: 2, full_every: 2}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    lines = [
        f"{user},{item},{(user + item) % 5 + 0.5},0"
        for item in range(8)
        for user in (PERSON, *OTHERS)
    ]
    header = "userId,movieId,rating,timestamp"
    Path("ratings.csv").write_text("\n".join([header, *lines]) + "\n")

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        return code, *capfd.readouterr()

    return call


def trained(run: Run, storage: str) -> None:
    text = CONFIG.replace("STORAGE", storage)
    Path("run.yaml").write_text(text)
    code, _, said = run("train", "run.yaml")
    assert code == 0, said


def has_bytes(folder: str, pattern: bytes) -> bool:
    return any(pattern in each.read_bytes() for each in Path(folder).rglob("*") if each.is_file())


def row_of(key: int) -> Any:
    newest = latest_snapshot("runs")
    assert newest is not None
    chunks = list(merged_chunks(newest, "user"))
    keys = np.concatenate([chunk.keys for chunk in chunks])
    return np.concatenate([chunk.rows for chunk in chunks])[keys == key]


def test_get_shows_a_row_of_a_snapshot(run: Run) -> None:
    trained(run, "{backend: memory}")
    (row,) = row_of(PERSON)
    newest = list_snapshots("runs")[-1]
    for place in ("runs", newest):
        code, out, _ = run("get", place, "user", str(PERSON), "--json")
        found = json.loads(out)
        assert (code, found["found"], found["place"]) == (0, True, newest)
        assert found["parts"] == {"embedding": row[1:4].tolist(), "bias": row[:1].tolist()}
        assert found["state"] == row[4:].tolist()
        assert (found["state_method"], found["step"]) == ("adagrad", open_snapshot(newest).step)
    code, out, _ = run("get", newest, "user", str(PERSON))
    assert out.splitlines()[1].split()[:2] == ["embedding:", f"{row[1]:.6g}"]
    code, out, _ = run("get", "runs", "user", "-5")
    assert (code, out.splitlines()[1]) == (1, "no row: it reads as its initial value")
    code, _, said = run("get", "runs", "usr", "5")
    assert code == 2
    assert "no table 'usr'" in said
    code, _, said = run("get", "nowhere", "user", "5")
    assert code == 1
    assert "there is no snapshot" in said


def test_erase_leaves_no_byte_of_a_person_in_snapshots_and_rocksdb(run: Run) -> None:
    pytest.importorskip("sparring_rocksdb._native", reason="needs sparring-rocksdb")
    trained(run, "{backend: rocksdb, options: {path: 'rows/{table}'}}")
    row = row_of(PERSON)[0].tobytes()
    other = row_of(OTHERS[0])[0].tobytes()
    key = np.int64(PERSON).tobytes()
    in_rocksdb = (PERSON ^ -(2**63)).to_bytes(8, "big", signed=True)
    code, out, _ = run("get", "run.yaml", "user", str(PERSON), "--json")
    found = json.loads(out)
    assert (code, found["place"]) == (0, "rocksdb (path rows/user)")
    assert found["parts"]["embedding"] == row_of(PERSON)[0][1:4].tolist()
    assert has_bytes("runs", key)
    assert has_bytes("rows", row)
    assert has_bytes("rows", in_rocksdb)
    Path("ids.txt").write_text(f"# asked for by mail\n{PERSON}  # a person\n\n99\n")

    erase = ("erase", "user", "--keys", "ids.txt", "--everywhere", "run.yaml")
    code, out, said = run(*erase, "--receipt", "receipt.json")
    assert code == 0, said
    for folder in ("runs", "rows"):
        for pattern in (key, in_rocksdb, row):
            assert not has_bytes(folder, pattern), (folder, pattern)
        assert has_bytes(folder, other)
    receipt = json.loads(Path("receipt.json").read_text())
    assert (receipt["table"], receipt["num_keys"]) == ("user", 2)
    assert receipt["storages"] == [{"place": "rocksdb (path rows/user)", "num_rows": 1}]
    (folder,) = receipt["snapshots"]
    assert len(folder["replaced"]) == len(list_snapshots("runs"))
    assert str(PERSON) not in Path("receipt.json").read_text()
    assert any("Bloom filter" in trace for trace in receipt["traces"])
    assert "receipt: receipt.json" in out
    assert run("get", "run.yaml", "user", str(PERSON))[0] == 1
    assert run("get", "runs", "user", str(PERSON))[0] == 1
    assert run("get", "runs", "user", str(OTHERS[0]))[0] == 0
    # The run goes on from what was written, and a second erasure finds nothing.
    code, _, said = run("train", "run.yaml", "training.epochs=1", "--resume")
    assert code == 0, said
    assert "resumed from" in said
    code, out, _ = run("erase", "user", "--keys", "ids.txt", "--snapshots", "runs")
    assert code == 0
    assert "0 rows left out of 0 snapshots" in out


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["--everywhere", "run.yaml"], "", "has no ids"),
        (["--everywhere", "run.yaml"], "1\nx\n", "ids.txt:2: 'x' is no id"),
        (["--everywhere", "run.yaml"], f"{2**63}", "is no id"),
        ([], "1", "name where from"),
        (["--snapshots", "runs"], "1", "there is no snapshot in runs"),
        (["--everywhere", "run.yaml", "--receipt", "ids.txt"], "1", "exists already"),
    ],
    ids=["none", "text", "too_large", "nowhere", "empty", "receipt"],
)
def test_what_cannot_be_erased_is_refused(
    run: Run, arguments: list[str], text: str, said: str
) -> None:
    Path("run.yaml").write_text(CONFIG.replace("STORAGE", "{backend: memory}"))
    Path("ids.txt").write_text(text)
    code, _, found = run("erase", "user", "--keys", "ids.txt", *arguments)
    assert code == 2
    assert said in found
