"""``sparring export --to npy|faiss`` and ``sparring import``: exported rows can be imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import EMBEDDING_PARTS, State
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError
from sparring_cli.application import main

KEYS = np.array([5, -7, 2**62, 0])
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def saved(folder: Path, columns: Any = None, dtype: str = "float32") -> str:
    with StepContainer() as container:
        container.declare(TableConfig("item", 3, dtype), StorageChoice("memory"))
        container.set_state("item", np.array([0.5], np.float32), "adagrad")
        container.assign("item", KEYS, ROWS)
        states = {} if columns is None else {EMBEDDING_PARTS: State(columns)}
        return container.save(str(folder / "saved"), states=states).url


def loaded(url: str, dtype: str = "float32") -> dict[int, list[float]]:
    with StepContainer() as container:
        container.declare(TableConfig("item", 3, dtype), StorageChoice("memory"))
        with pytest.raises(InvalidArgumentError, match=r"load\(url, tables=\['item'\]\)"):
            container.load(url)
        container.load(url, tables=["item"])
        found = container.lookup("item", KEYS, is_registered=False)
        assert container.num_rows("item") == len(KEYS)
        return dict(zip(KEYS.tolist(), found.rows[found.inverse].tolist(), strict=True))


EXPECTED = dict(zip(KEYS.tolist(), ROWS.tolist(), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays_are_exported_and_imported(tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "out"
    assert main(["export", saved(tmp_path, None, dtype), "--to", "npy", "--output", str(out)]) == 0
    assert sorted(each.name for each in out.iterdir()) == ["item.embedding.npy", "item.key.npy"]
    into = str(tmp_path / "again")
    arrays = [str(out / "item.embedding.npy"), "--ids", str(out / "item.key.npy")]
    command = ["import", *arrays, "--from", "npy", "--output", into, "--table", "item"]
    assert main([*command, "--dtype", dtype]) == 0
    assert loaded(into, dtype) == EXPECTED


def test_parquet_is_exported_and_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    assert main(["export", saved(tmp_path), "--output", str(tmp_path)]) == 0
    into = str(tmp_path / "again")
    source = str(tmp_path / "item.parquet")
    assert main(["import", source, "--from", "parquet", "--output", into, "--table", "item"]) == 0
    assert "4 rows of table 'item'" in capsys.readouterr().out
    assert loaded(into) == EXPECTED


def test_elements_of_an_embedding_are_separate_columns(tmp_path: Path) -> None:
    columns = {"item": {"bias": [0, 1], "embedding": [1, 3]}}
    url = saved(tmp_path, columns)
    assert main(["export", url, "--to", "npy", "--output", str(tmp_path / "a"), "--state"]) == 0
    held = {each: np.load(tmp_path / f"a/item.{each}.npy") for each in ("key", "bias", "embedding")}
    order = np.argsort(held["key"])
    assert held["bias"][order].tolist() == ROWS[np.argsort(KEYS), 0].tolist()
    assert held["embedding"][order].tolist() == ROWS[np.argsort(KEYS), 1:].tolist()
    assert np.load(tmp_path / "a/item.state.npy").tolist() == [[0.5]] * 4
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert main(["export", url, "--output", str(tmp_path / "b")]) == 0
    table = parquet.read_table(tmp_path / "b/item.parquet")
    assert table.column_names == ["key", "embedding", "bias"]
    assert table["bias"].to_pylist() == held["bias"].tolist()


def test_the_name_of_the_state_in_snapshots_stays_the_same() -> None:
    assert EMBEDDING_PARTS == "embedding_parts"


def test_an_index_of_faiss_finds_keys(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    columns = {"item": {"bias": [0, 1], "embedding": [1, 3]}}
    assert (
        main(["export", saved(tmp_path, columns), "--to", "faiss", "--output", str(tmp_path)]) == 0
    )
    index = faiss.read_index(str(tmp_path / "item.faiss"))
    products, keys = index.search(np.array([[1, 0], [0, -1]], np.float32), 1)
    assert keys.tolist() == [[0], [5]]
    assert products.tolist() == [[10], [-2]]


def test_without_faiss_the_install_command_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["export", saved(tmp_path), "--to", "faiss", "--output", str(tmp_path)]) == 1
    assert (
        "export to faiss needs faiss; install it: pip install faiss-cpu" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "columns",
    [
        7,
        {"item": 7},
        {"item": {"bias": [0, 1]}},
        {"item": {"embedding": [0, 4]}},
        {"item": {"embedding": [0, "x"]}},
        {"item": {"embedding": [0, 1, 2, 3]}},
        {"item": {"embedding": [0, 1], "key": [1, 2]}},
    ],
)
def test_invalid_columns_are_rejected(
    columns: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", saved(tmp_path, columns), "--to", "npy", "--output", str(tmp_path)]) == 1
    assert "must map parts to [begin, end]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("embeddings", "ids", "message"),
    [
        (ROWS, [1, 2, 1, 3], "found key 1 2 times"),
        (ROWS, [1, 2], "expected one id for each of 4 embeddings"),
        (ROWS, [1.0, 2.0, 3.0, 4.0], "keys must be int64, found float64"),
        (ROWS, np.array([1, 2, 3, 2**63], np.uint64), "keys must be int64, found uint64"),
        (ROWS[0], None, "expected numbers of shape (n, dim)"),
        (ROWS * np.nan, None, "found NaN or infinity"),
        (None, None, "No such file or directory; check the path"),
        (b"user,item\n", None, "is not an array of numbers that numpy.save wrote"),
    ],
)
def test_files_that_are_not_tables_are_rejected(
    embeddings: Any, ids: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, keys, into = tmp_path / "rows.npy", tmp_path / "ids.npy", tmp_path / "made"
    if isinstance(embeddings, bytes):
        source.write_bytes(embeddings)
    elif embeddings is not None:
        np.save(source, embeddings)
    command = ["import", str(source), "--from", "npy", "--output", str(into), "--table", "item"]
    if ids is not None:
        np.save(keys, np.asarray(ids))
        command += ["--ids", str(keys)]
    with np.errstate(invalid="ignore"):
        assert main(command) == 2
    assert message in capsys.readouterr().err
    assert not into.exists()


def test_parquet_without_its_columns_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    source = tmp_path / "rows.parquet"
    command = ["import", str(source), "--from", "parquet", "--table", "item"]
    tables = {
        "has no column 'key'": {"id": [1], "embedding": [[1.0]]},
        "must contain lists of numbers": {"key": [1], "embedding": [1.0]},
        "must have 2 numbers": {"key": [1, 2], "embedding": [[1.0, 2.0], [1.0]]},
    }
    for number, (message, columns) in enumerate(tables.items()):
        parquet.write_table(pyarrow.table(columns), source)
        assert main([*command, "--output", str(tmp_path / f"made-{number}")]) == 2
        assert message in capsys.readouterr().err
    source.write_text("junk")
    assert main([*command, "--output", str(tmp_path / "junk")]) == 2
    assert "rows.parquet as Parquet" in capsys.readouterr().err
