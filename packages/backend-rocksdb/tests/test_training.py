"""The storage of rows does not change the trained model by a bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import TableConfig, write_note
from sparring_cli.application import main
from sparring_testing.fixtures.runs import RunCommand, write_ratings

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_hkv", reason="needs sparring-hkv")

ROOT = Path(__file__).parents[3]


@pytest.fixture
def trained(run_sparring: RunCommand) -> Callable[..., dict[str, Any]]:
    """Returns the final JSON of ``sparring train --json``."""

    def train(config: str, *overrides: str) -> dict[str, Any]:
        ended = run_sparring("train", ROOT / "configs" / config, *overrides, "--json")
        assert ended.code == 0, ended.err
        return {name: ended.last_json[name] for name in ("metrics", "rows", "steps")}

    return train


def made_ratings(folder: Path) -> Path:
    """A file of 1,500 ratings."""
    random = np.random.default_rng(5)
    users, items = random.integers(0, 40, 1500), random.integers(0, 300, 1500)
    scores = np.clip(np.round(6 + random.normal(size=40)[users] * 2) / 2, 0.5, 5)
    path = write_ratings(folder / "ratings.csv", users * 10**12 - 7, items, scores)
    path.write_text(path.read_text().replace("user,item", "userId,movieId", 1))
    return path


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_ratings_are_learned_as_with_a_table_in_memory(
    tmp_path: Path, optimizer: str, trained: Callable[..., dict[str, Any]]
) -> None:
    given = [f"data.path={made_ratings(tmp_path)}", "training.epochs=2", "data.batch_size=100"]
    given.append(f"optimizer.sparse.name={optimizer}")
    place = f"storage.options.path={tmp_path}/{{rank}}-of-{{world_size}}"
    assert trained("rocksdb.yaml", *given, place) == trained("movielens.yaml", *given)
    assert (tmp_path / "0-of-1").is_dir()


NOTES = {
    "a load that was cut short": ("load", "elsewhere", "a load of elsewhere was cut short"),
    "rows of another part": ("part", "rank 0 of 9", "rows of table 'user'"),
}


@pytest.mark.parametrize("kind", NOTES)
def test_a_rejected_run_can_be_fixed_by_resuming(
    kind: str,
    tmp_path: Path,
    trained: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "rows"
    given = [f"data.path={made_ratings(tmp_path)}", "data.batch_size=100", "training.epochs=2"]
    expected = trained("movielens.yaml", *given)
    given.append(f"storage.options.path={folder}")
    saved = f"snapshots.url={tmp_path / 'saved'}"
    trained("rocksdb.yaml", *given, saved, "training.steps=9")
    name, text, message = NOTES[kind]
    table = TableConfig("user", 33, state_width=33, state_method="adagrad")
    with open_storage("rocksdb", table, path=str(folder)) as storage:
        write_note(storage, name, text)
    assert main(["train", str(ROOT / "configs/rocksdb.yaml"), *given])
    assert message in capsys.readouterr().err
    assert trained("rocksdb.yaml", *given, saved, "--resume") == expected


@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_run_from_the_beginning_is_rejected_if_rows_exist(
    is_stacked: bool,
    tmp_path: Path,
    trained: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def given(folder: Path, *more: str) -> list[str]:
        tiers = f"[{{backend: hkv}}, {{backend: rocksdb, options: {{path: {folder}}}}}]"
        stacked = ["storage.backend=tiered", f"storage.options={{tiers: {tiers}}}"]
        return [*data, *(stacked if is_stacked else [f"storage.options.path={folder}"]), *more]

    data = [f"data.path={made_ratings(tmp_path)}", "data.batch_size=100", "training.epochs=2"]
    saved = f"snapshots.url={tmp_path / 'saved'}"
    rows = tmp_path / "rows"
    expected = trained("rocksdb.yaml", *given(tmp_path / "whole"))
    trained("rocksdb.yaml", *given(rows, saved, "training.steps=9"))
    for more in ([], ["seed=4"], [f"snapshots.url={tmp_path / 'elsewhere'}"]):
        assert main(["train", str(ROOT / "configs/rocksdb.yaml"), *given(rows, *more)]) == 2
        said = capsys.readouterr().err
        assert f"rocksdb (path {rows}) already contains " in said
        assert " rows of table 'user', but this run starts without --resume" in said
        assert "step 1" not in said
    assert trained("rocksdb.yaml", *given(rows, saved, "--resume")) == expected


def test_a_run_that_resumes_without_a_snapshot_reports_existing_rows(
    tmp_path: Path, trained: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"data.path={made_ratings(tmp_path)}", "data.batch_size=100", "training.steps=3"]
    given.append(f"storage.options.path={tmp_path / 'rows'}")
    trained("rocksdb.yaml", *given)
    resumed = [*given, f"snapshots.url={tmp_path / 'saved'}", "--resume"]
    assert main(["train", str(ROOT / "configs/rocksdb.yaml"), *resumed]) == 0
    said = capsys.readouterr().err
    assert "there is no snapshot in" in said
    assert "rows of table 'user'; training starts from them" in said


def test_cleared_rows_do_not_prevent_a_run(
    tmp_path: Path, trained: Callable[..., dict[str, Any]]
) -> None:
    given = [f"data.path={made_ratings(tmp_path)}", "data.batch_size=100", "training.steps=9"]
    given.append(f"storage.options.path={tmp_path / 'rows'}")
    expected = trained("rocksdb.yaml", *given)
    for name in ("user", "item"):
        table = TableConfig(name, 33, state_width=33, state_method="adagrad")
        with open_storage("rocksdb", table, path=str(tmp_path / "rows")) as storage:
            storage.clear()
    assert trained("rocksdb.yaml", *given) == expected


def test_a_rejected_resume_leaves_rows_unchanged(
    tmp_path: Path, trained: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, saved = tmp_path / "rows", f"snapshots.url={tmp_path / 'saved'}"
    given = [f"data.path={made_ratings(tmp_path)}", "data.batch_size=100"]
    given += [f"storage.options.path={folder}", "training.epochs=2"]

    def rows() -> dict[int, bytes]:
        table = TableConfig("user", 33, state_width=33, state_method="adagrad")
        with open_storage("rocksdb", table, path=str(folder)) as storage:
            return {
                int(key): row.tobytes()
                for chunk in storage.scan()
                for key, row in zip(chunk.keys, chunk.rows, strict=True)
            }

    trained("rocksdb.yaml", *given, saved, "training.steps=9")
    # Training continues beyond the snapshot, so that loading it would change the rows.
    trained(
        "rocksdb.yaml", *given, saved, "training.steps=20", "snapshots.at_end=false", "--resume"
    )
    before = rows()
    command = ["train", str(ROOT / "configs/rocksdb.yaml"), *given, saved, "--resume"]
    assert main([*command, "seed=2"]) == 2
    assert "seed: 1, this one has 2" in capsys.readouterr().err
    assert rows() == before
    assert main([*command, "training.steps=9"]) == 0
    assert rows() != before


@pytest.mark.slow  # more ratings than in the test above
def test_movielens_is_learned_as_with_a_table_in_memory(
    tmp_path: Path, trained: Callable[..., dict[str, Any]]
) -> None:
    folder = os.environ.get("SPARRING_TEST_DATA")
    root = Path(folder) if folder else ROOT.parent / "shared" / "data"
    path = root / "ml-latest-small" / "ratings.csv"
    if not path.exists():
        pytest.skip(f"needs {path}; SPARRING_TEST_DATA names the folder above ml-latest-small")
    given = [f"data.path={path}", "training.epochs=1"]
    stored = ["storage.backend=rocksdb", f"storage.options.path={tmp_path / 'rows'}"]
    assert trained("movielens.yaml", *given, *stored) == trained("movielens.yaml", *given)
