"""`sparring get` and `sparring erase`: rows of a finished run, shown and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from pyarrow import parquet

from sparring import hash_strings
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import latest_snapshot, list_snapshots
from sparring_testing.fixtures.runs import RunCommand, write_ratings

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

PERSON = 7_777_777_777_777_001
OTHERS = [7_777_777_777_777_001 + each for each in range(1, 9)]

CONFIG = """
seed: 3
data: {kind: table, path: ratings.csv, batch_size: 16, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.05}}
model: {kind: matrix_factorization, dim: 3}
tables: {overrides: {user: {admission: {kind: bloom, k: 1}}}}
storage: STORAGE
snapshots: {url: runs, every_steps: 2, full_every: 2}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_sparring: RunCommand) -> Run:
    monkeypatch.chdir(tmp_path)
    pairs = [(user, item) for item in range(8) for user in (PERSON, *OTHERS)]
    ratings = [(user + item) % 5 + 0.5 for user, item in pairs]
    write_ratings(Path("ratings.csv"), *zip(*pairs, strict=True), ratings)
    return lambda *arguments: astuple(run_sparring(*arguments))


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
    chunks = list(scan_rows(newest, "user"))
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
    assert (code, out.splitlines()[1]) == (3, "no row: it reads as its initial value")
    code, _, said = run("get", "runs", "usr", "5")
    assert code == 3
    assert "no table 'usr'" in said
    code, _, said = run("get", "nowhere", "user", "5")
    assert code == 3
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
    before = {each: each.read_bytes() for each in Path().rglob("*") if each.is_file()}
    code, out, said = run(*erase, "--dry-run", "--json")
    found = json.loads(out)
    assert code == 0, said
    assert found["storages"] == [{"place": "rocksdb (path rows/user)", "num_rows": 1}]
    assert found["snapshots"][0]["replaced"] == list_snapshots("runs")
    expected_rows = found["snapshots"][0]["num_rows"]
    after = {each: each.read_bytes() for each in Path("runs").rglob("*") if each.is_file()}
    assert after.items() <= before.items()
    assert has_bytes("rows", row)
    # Standard input of a test is not a terminal.
    code, _, said = run(*erase)
    assert code == 2
    assert "add --yes" in said
    code, out, said = run(*erase, "--yes", "--output", "receipt.json")
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
    assert folder["num_rows"] == expected_rows
    assert str(PERSON) not in Path("receipt.json").read_text()
    assert any("Bloom filter" in trace for trace in receipt["traces"])
    assert "receipt: receipt.json" in out
    assert run("get", "run.yaml", "user", str(PERSON))[0] == 3
    assert run("get", "runs", "user", str(PERSON))[0] == 3
    assert run("get", "runs", "user", str(OTHERS[0]))[0] == 0
    # The run continues from the rewritten snapshot, and a second erasure finds nothing.
    code, _, said = run("train", "run.yaml", "training.epochs=1", "--resume")
    assert code == 0, said
    assert "resumed from" in said
    code, out, _ = run("erase", "user", "--keys", "ids.txt", "--yes", "--snapshots", "runs")
    assert code == 0
    assert "0 rows removed from 0 snapshots" in out


@pytest.mark.parametrize(
    ("arguments", "text", "expected", "said"),
    [
        (["--everywhere", "run.yaml"], "# none\n", 2, "found no ids in"),
        ([], "1", 2, "found nothing to erase from"),
        (["--snapshots", "runs"], "1", 3, "found no snapshot in runs"),
        (["--everywhere", "run.yaml", "--output", "ids.txt"], "1", 2, "already exists"),
    ],
    ids=["none", "nowhere", "empty", "receipt"],
)
def test_tables_that_cannot_be_erased_from_are_rejected(
    run: Run, arguments: list[str], text: str, expected: int, said: str
) -> None:
    Path("run.yaml").write_text(CONFIG.replace("STORAGE", "{backend: memory}"))
    Path("ids.txt").write_text(text)
    code, _, found = run("erase", "user", "--keys", "ids.txt", "--yes", *arguments)
    assert code == expected
    assert said in found


STRINGS = """
seed: 3
data: {kind: table, path: clicks.csv, label: clicked, categorical: [who, friends, what],
       lists: [friends], separator: "|", share_tables: {friends: who}, bad_rows: skip,
       dictionary: true, batch_size: 16}
model: {kind: dlrm, embedding_dim: 3, top_mlp: [4]}
storage: {backend: memory}
snapshots: {url: runs, every_steps: 2}
metrics: {path: metrics.jsonl}
"""
EMAIL = "søren+ads@example.org"


@pytest.fixture
def trained_on_strings(run: Run) -> Run:
    people = [EMAIL, *(f"person{each}@example.org" for each in range(7))]
    lines = [
        f"{(at + each) % 2},{who},{people[at - 1]}|{EMAIL},film {each}"
        for at, who in enumerate(people)
        for each in range(6)
    ]
    lines.insert(3, "a broken line")
    Path("clicks.csv").write_text("\n".join(["clicked,who,friends,what", *lines]) + "\n")
    Path("run.yaml").write_text(STRINGS)
    code, _, said = run("train", "run.yaml")
    assert code == 0, said
    return run


def strings_in(folder: str) -> set[str]:
    files = Path(folder).rglob("*.parquet")
    return {
        text.decode() for file in files for text in parquet.read_table(file)["string"].to_pylist()
    }


def test_erase_by_a_string_leaves_no_text_and_no_row_of_the_person(trained_on_strings: Run) -> None:
    run = trained_on_strings
    assert {EMAIL, "film 1"} < strings_in("runs/strings")
    unfinished = Path("runs/strings/who/0.parquet.unfinished")
    unfinished.write_text(EMAIL)
    Path("runs/notes.txt").write_text(f"asked by {EMAIL}")
    Path("ids.txt").write_text(f"{EMAIL}  # asked on 3 May\n", encoding="utf-8")
    erase = ("erase", "who", "--keys", "ids.txt", "--yes", "--everywhere", "run.yaml")
    code, out, said = run(*erase, "--output", "receipt.json")
    assert code == 0, said
    key = hash_strings([EMAIL])[0].tobytes()
    Path("runs/notes.txt").unlink()
    assert not has_bytes("runs", EMAIL.encode())
    assert not has_bytes("runs", key)
    assert EMAIL not in Path("metrics.jsonl").read_text()
    assert "runs/notes.txt: still contains 1 of the ids" in out
    left = strings_in("runs/strings")
    assert EMAIL not in left
    assert {"film 1", "person1@example.org"} < left
    assert run("get", "runs", "who", EMAIL)[0] == 3
    assert run("get", "runs", "who", "person1@example.org")[0] == 0
    text = Path("receipt.json").read_text(encoding="utf-8")
    receipt = json.loads(text)
    assert EMAIL not in text
    assert receipt["num_keys"] == 1
    # The string occurs in two columns that share the table.
    (strings,) = receipt["strings"]
    assert strings["num_strings"] == 2
    assert strings["folder"].endswith("/runs/strings")
    places = " ".join(each["place"] for each in receipt["remains"])
    for place in (
        "clicks.csv",
        "serving snapshots",
        "caches",
        "push logs",
        "exported",
        "standard error",
    ):
        assert place in places
    searched = {Path(each["path"]).name: each["num_ids"] for each in receipt["files"]}
    assert searched.items() > {"metrics.jsonl": 0, "notes.txt": 1}.items()
    assert not any(count for name, count in searched.items() if name != "notes.txt")
    assert receipt["lines_without_a_row"] == []
    # Without the configuration, the snapshot determines which columns belong to the table.
    code, _, said = run("erase", "what", "--keys", "ids.txt", "--yes", "--snapshots", "runs")
    assert code == 0, said


def test_an_erasure_is_audited_without_its_ids(trained_on_strings: Run) -> None:
    run = trained_on_strings
    Path("ids.txt").write_text(EMAIL, encoding="utf-8")
    options = ("--keys", "ids.txt", "--yes", "--snapshots", "runs", "--output")
    code, _, said = run("erase", "who", *options, "done.json")
    assert code == 0, said
    receipt = json.loads(Path("done.json").read_text())
    [line] = [each for each in said.splitlines() if each.startswith("audit: ")]
    who = f"by '{receipt['user']}' on {receipt['host']}: "
    assert line.startswith(f"audit: erase of 1 ids from table 'who' {who}done after ")
    assert line.endswith(f" s, request id {receipt['request_id']}, receipt done.json")
    # A failed one also has a line, and no receipt.
    code, _, said = run("erase", "nobody", *options, "failed.json")
    assert code == 1, said
    [line] = [each for each in said.splitlines() if each.startswith("audit: ")]
    assert f"from table 'nobody' {who}failed after " in line
    assert not Path("failed.json").exists()
    assert EMAIL not in said


@pytest.mark.parametrize("text", ["x", f"{2**64}"])
def test_erase_rejects_a_string_if_the_ids_of_the_table_are_numbers(run: Run, text: str) -> None:
    Path("clicks.csv").write_text("clicked,who\n" + "1,7\n0,8\n" * 20)
    config = STRINGS.replace("[who, friends, what]", "[who]").replace(
        "lists: [friends]", "lists: []"
    )
    Path("run.yaml").write_text(config.replace("{friends: who}", "{}"))
    assert run("train", "run.yaml")[0] == 0
    Path("ids.txt").write_text(f"7\n{text}\n")
    code, _, said = run("erase", "who", "--keys", "ids.txt", "--yes", "--everywhere", "run.yaml")
    assert code == 2
    assert f"ids.txt:2: found '{text}', but ids of table 'who' are whole numbers" in said


@pytest.mark.parametrize(("answer", "expected"), [("n", 1), ("y", 0)])
def test_erase_asks_on_a_terminal(
    run: Run, answer: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(run, "{backend: memory}")
    Path("ids.txt").write_text(f"{PERSON}\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, abort, err: _answer(answer, abort and err))
    code, _, said = run("erase", "user", "--keys", "ids.txt", "--snapshots", "runs")
    assert code == expected, said
    assert has_bytes("runs", np.int64(PERSON).tobytes()) == (answer == "n")


def _answer(answer: str, aborts: bool) -> bool:
    if answer == "n" and aborts:
        raise typer.Abort
    return True
