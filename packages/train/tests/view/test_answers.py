"""Tests of what the page shows, compared with values that are computed from the rows."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from sparring import (
    ScanChunk,
    SnapshotWriter,
    TableDescription,
    hash_strings,
    make_plugin_manager,
)
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.errors import DataError, InvalidArgumentError, UnsupportedError
from sparring.snapshot.row_router import SnapshotOptions
from sparring_train import look
from sparring_train.view import answers
from sparring_train.view import sample as sampling
from sparring_train.view.answers import LookView, open_source
from sparring_train.view.colors import read_colors
from sparring_train.view.numbers import Histogram, map_points

from .conftest import CREATED, ERASED, MOVED, NUM_ROWS, STEPS, embeddings_of

ROWS = NUM_ROWS + len(CREATED) - len(ERASED)


def ask(view: LookView, request: str, **parameters: str) -> Any:
    return view.answer(request, parameters, lambda _: None)


def test_overview_shows_the_facts_of_the_manifests(view: LookView) -> None:
    found = ask(view, "overview")
    assert (found["step"], found["chain"]) == (STEPS, ["delta", "base"])
    user, item = found["tables"]
    assert (item["name"], item["most_rows"], item["num_written"]) == ("item", 2, 0)
    assert (user["num_written"], user["num_erased"]) == (len(MOVED) + len(CREATED), len(ERASED))
    assert not user["is_exact"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_values_of_a_file_color_the_sample(run_folder: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"films.{ending}"
    keys = np.arange(100, NUM_ROWS)
    table = pyarrow.table(
        {"film": keys, "year": keys % 50, "genre": [f"g{min(key % 12, 9)}" for key in keys]}
    )
    (csv.write_csv if ending == "csv" else parquet.write_table)(table, path)
    for column in ("year", "genre"):
        source = open_source(str(run_folder), make_plugin_manager())
        view = LookView(source, colors=read_colors(path, column))
        assert ask(view, "sample", table="item")["colors"] is None
        sample = ask(view, "sample", table="user")
        colors, known = sample["colors"], np.array(sample["keys"], np.int64)
        assert (colors["name"], len(colors["groups"])) == (column, 0 if column == "year" else 8)
        for key, value in zip(known.tolist(), colors["values"], strict=True):
            if not 100 <= key < NUM_ROWS:
                assert value is None
            elif column == "year":
                assert value == key % 50
            else:
                group = f"g{min(key % 12, 9)}"
                assert colors["groups"][int(value)] in (group, "other")
        # Most frequent first, and rare ones together.
        assert column == "year" or (colors["groups"][0], colors["groups"][-1]) == ("g9", "other")
        view.close()


def test_strings_of_a_file_are_hashed(tmp_path: Path) -> None:
    path = tmp_path / "films.csv"
    path.write_text("film,genre\nalien,horror\nfargo,\nheat,crime\n")
    found = read_colors(path, "genre")
    texts = [found.groups[int(each)] for each in found.of(hash_strings(["alien", "heat"]))]
    assert texts == ["horror", "crime"]
    for column in ("film", "price"):
        with pytest.raises(DataError, match="expected a column after the ids: genre"):
            read_colors(path, column)
    with pytest.raises(DataError, match="as CSV or Parquet failed"):
        read_colors(tmp_path / "none.parquet", "genre")


def test_sample_contains_only_the_newest_rows(view: LookView) -> None:
    found = ask(view, "sample", table="user")
    keys = np.array(found["keys"], np.int64)
    assert len(keys) == len(set(found["keys"])) == sampling.SAMPLE_ROWS
    assert not np.isin(keys, ERASED).any()
    is_moved = np.isin(keys, MOVED)
    expected = np.where(is_moved[:, None], embeddings_of(keys, 1.0), embeddings_of(keys))
    np.testing.assert_allclose(
        found["numbers"]["norm"], np.linalg.norm(expected, axis=1), rtol=1e-4
    )
    np.testing.assert_array_equal(found["numbers"]["score"], keys % 9 + 1)
    assert found["rows"] == pytest.approx(ROWS, rel=0.05)
    assert found["keys"] == ask(view, "sample", table="user")["keys"]


def test_sample_of_a_large_file_is_spread_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200_000
    options = SnapshotOptions(buffer_bytes=2 << 20, small_bytes=1 << 20)
    writer = SnapshotWriter(f"{tmp_path}/wide", step=1, options=options)
    # A storage may write its rows in the order of keys.
    keys, rows = np.arange(count), np.zeros((count, 32), np.float32)
    chunk = ScanChunk(keys, rows, np.zeros(count, np.uint64))
    writer.write_table(TableDescription("t", 32), [chunk])
    writer.finish()
    snapshot = writer.commit()
    monkeypatch.setattr(sampling, "_READ_BYTES", 300_000)
    read: list[int] = []
    original = type(snapshot).segments
    monkeypatch.setattr(
        type(snapshot),
        "segments",
        lambda *given: (read.append(len(each)) or each for each in original(*given)),
    )
    found = sampling.sample_rows(snapshot, "t")
    assert found.num_rows == count
    assert 0 < sum(read) < count / 16 / 2
    # The first segment contains only small keys.
    assert np.quantile(found.chunk.keys, 0.9) > 0.6 * count


def test_sample_of_rows_in_blocks_of_columns(tmp_path: Path) -> None:
    keys = np.arange(100)
    rows = np.arange(400, dtype=np.float32).reshape(100, 4)
    writer = SnapshotWriter(f"{tmp_path}/split", step=1)
    for block in (ColumnBlock(0, 2), ColumnBlock(2, 4)):
        part = np.ascontiguousarray(rows[:, block.begin : block.end])
        chunk = ScanChunk(keys, part, np.zeros(100, np.uint64))
        writer.write_table(TableDescription("t", 4), [chunk], columns=block)
    writer.finish()
    found = sampling.sample_rows(writer.commit(), "t")
    assert found.num_rows == 100
    np.testing.assert_array_equal(found.chunk.rows, rows[found.chunk.keys])


@pytest.mark.parametrize("text", ["100", "user-1"])
def test_row_of_an_id_or_a_string(view: LookView, text: str) -> None:
    found = ask(view, "row", table="user", id=text)
    assert found["found"] == (text == "100")
    if found["found"]:
        np.testing.assert_allclose(found["parts"]["embedding"], embeddings_of(MOVED, 1.0)[50])
        assert (found["key"], found["score"]) == ("100", 2)


def test_neighbors_are_the_nearest_rows(view: LookView) -> None:
    keys = np.arange(len(ERASED), NUM_ROWS + len(CREATED))
    rows = embeddings_of(keys).astype(np.float64)
    rows[: len(MOVED)] += 1
    distances = ((rows - rows[keys == 5_000]) ** 2).sum(axis=1)
    found = ask(view, "neighbors", table="user", id="5000", k="3", metric="l2")["neighbors"]
    # Rows with equal distances may be in any order.
    np.testing.assert_allclose(
        [-each["score"] for each in found], np.sort(distances)[1:4], atol=1e-3
    )


def test_measure_reads_all_rows(view: LookView) -> None:
    shares: list[float] = []
    found = view.answer("measure", {"table": "user"}, shares.append)
    keys = np.arange(len(ERASED), NUM_ROWS + len(CREATED))
    rows = embeddings_of(keys)
    rows[: len(MOVED)] += 1
    norms = np.linalg.norm(rows, axis=1)
    assert found["rows"] == ROWS
    assert found["numbers"]["norm"]["mean"] == pytest.approx(norms.mean(), rel=1e-5)
    assert sum(found["numbers"]["norm"]["histogram"]["counts"]) == ROWS
    assert found["numbers"]["score"]["max"] == 9
    ages = STEPS - keys % STEPS
    assert found["numbers"]["age"]["mean"] == pytest.approx(ages.mean())
    assert found["dead"] == (ages > STEPS / 2).sum()
    assert shares
    assert max(shares) <= 1


def test_difference_of_two_versions(view: LookView) -> None:
    assert ask(view, "versions")["previous"] == "base"
    found = ask(view, "difference", table="user", top="5", **{"with": "base"})
    counts = (found["created"], found["erased"], found["changed"])
    assert counts == (len(CREATED), len(ERASED), len(MOVED))
    assert found["unchanged"] == NUM_ROWS - len(ERASED) - len(MOVED)
    assert {int(each["key"]) for each in found["most_moved"]} <= {*MOVED.tolist()}
    assert found["moved_mean"] == pytest.approx(2, rel=1e-3)


def test_history_shows_the_changes_of_a_row(view: LookView) -> None:
    found = ask(view, "history", table="user", id="60")
    assert [(each["step"], each["change"]) for each in found] == [(10, "found"), (STEPS, "changed")]


def test_served_versions_show_the_same(run_folder: Path, tmp_path: Path) -> None:
    import sparring_packed

    for name in ("base", "delta"):
        sparring_packed.write(f"{run_folder}/{name}", f"{tmp_path}/{name}")
    view = LookView(open_source(str(tmp_path), make_plugin_manager()))
    try:
        assert ask(view, "overview")["kind"] == "serving snapshot"
        assert len(ask(view, "sample", table="user")["keys"]) == sampling.SAMPLE_ROWS
        assert ask(view, "row", table="user", id="100")["found"]
        assert not ask(view, "row", table="user", id="0")["found"]
        assert ask(view, "measure", table="user")["rows"] == ROWS
        found = ask(view, "difference", table="user", **{"with": "base"})
        counts = (found["created"], found["erased"], found["changed"])
        assert counts == (len(CREATED), len(ERASED), len(MOVED))
        assert found["moved_mean"] == pytest.approx(2, rel=1e-3)
        with pytest.raises(UnsupportedError, match="history of a row"):
            ask(view, "history", table="user", id="60")
    finally:
        view.close()


def test_served_versions_are_in_the_order_of_readers(run_folder: Path, tmp_path: Path) -> None:
    import sparring_packed

    # The base has a lower step, and was published last.
    sparring_packed.write(f"{run_folder}/delta", f"{tmp_path}/first")
    options = sparring_packed.WriteOptions(generation=1)
    sparring_packed.write(f"{run_folder}/base", f"{tmp_path}/again", options=options)
    source = open_source(str(tmp_path), make_plugin_manager())
    try:
        assert [each["name"] for each in source.versions()] == ["first", "again"]
        assert source.step == 10
    finally:
        source.close()


def test_map_projects_on_the_directions_of_largest_variance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = np.random.default_rng(0).normal(size=(200, 3)) * [1.0, 9.0, 0.1]
    points[7] = np.nan
    found = map_points(points, "pca")
    x = np.array([np.nan if each is None else each for each in found["x"]])
    assert found["x"][7] is None
    assert abs(np.corrcoef(np.delete(x, 7), np.delete(points[:, 1], 7))[0, 1]) > 0.999
    assert found["explained"][0] > 0.9
    assert len({*map_points(1e-9 * points, "pca")["x"]}) == 200
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UnsupportedError, match="pip install umap-learn"):
        map_points(points, "umap")
    made = SimpleNamespace(fit_transform=lambda wide: wide[:, :2])
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=lambda **_: made))
    assert len(map_points(points, "umap")["x"]) == 200


def test_one_map_is_computed_at_a_time(view: LookView, monkeypatch: pytest.MonkeyPatch) -> None:
    active: list[None] = []

    def compute(*_: Any) -> dict[str, Any]:
        active.append(None)
        time.sleep(0.1)
        assert len(active) == 1
        active.clear()
        return {"x": [], "y": []}

    monkeypatch.setattr(answers, "map_points", compute)
    with ThreadPoolExecutor(2) as threads:
        tables = [threads.submit(view.sample, each, "umap") for each in ("user", "item")]
        assert [each.result()["table"] for each in tables] == ["user", "item"]


@pytest.mark.parametrize(
    "numbers",
    [[], [1.0], [np.nan, np.inf], [0.0, 5.0], [1.0] * 90 + [1e9]],
    ids=["none", "one", "not finite", "two", "skewed"],
)
def test_histogram_counts_every_finite_number(numbers: list[float]) -> None:
    values = np.array(numbers)
    found = Histogram(values)
    found.add(values)
    assert found.counts.sum() == np.isfinite(values).sum()
    assert (np.diff(found.edges) > 0).all()


def test_page_of_a_notebook_is_complete_and_escapes_texts(tmp_path: Path) -> None:
    folder = tmp_path / "a<!--<script>b"
    folder.mkdir()
    writer = SnapshotWriter(f"{folder}/step", step=1)
    keys = np.arange(3)
    chunk = ScanChunk(keys, np.ones((3, 2), np.float32), np.zeros(3, np.uint64))
    writer.write_table(TableDescription("t", 2), [chunk])
    writer.finish()
    writer.commit()
    page = look(folder, folder)
    assert "<!--" not in page.html
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "http://" not in page.html.replace("http://www.w3.org/2000/svg", "")
    shown = page._repr_html_()
    assert 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown


def test_versions_of_different_kinds_are_rejected(run_folder: Path, tmp_path: Path) -> None:
    import sparring_packed

    sparring_packed.write(f"{run_folder}/base", f"{tmp_path}/base")
    with pytest.raises(InvalidArgumentError, match="choose two of the same kind"):
        look(run_folder, tmp_path)
