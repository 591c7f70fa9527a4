"""`sparring skew` finds every column whose values differ, and only these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sparring import hash_strings
from sparring.errors import SparringError
from sparring_cli.application import main
from sparring_train.skew.compare import SkewReport, compare_files


def write(path: Path, columns: dict[str, Any]) -> str:
    """Writes Parquet, or an Arrow stream in two batches if the name ends in .arrows."""
    table = pyarrow.table(columns)
    if path.suffix == ".arrows":
        with (
            pyarrow.OSFile(str(path), "wb") as sink,
            pyarrow.ipc.new_stream(sink, table.schema) as writer,
        ):
            half = len(table) // 2
            writer.write_table(table.slice(0, half))
            writer.write_table(table.slice(half))
    else:
        parquet.write_table(table, path)
    return str(path)


def differing(report: SkewReport) -> dict[str, int]:
    return {each.name: each.num_differing for each in report.columns}


TRAINED = {
    "impression": ["p1", "p1", "p2", "p3"],
    "item": pyarrow.array(["a", "b", None, ""]),
    "colour": pyarrow.array(["red", None, "red", "blue"]).dictionary_encode(),
    "shop": pyarrow.array(["s", "t", "u", "s"], pyarrow.string_view()),
    "user": [1, 2, 2**62 + 1, -1],
    "seen": [["a", None, "b"], [], None, ["a"]],
    "price": [0.1, None, float("nan"), 2.5],
    "count": [3, 4, 5, 6],
    "age": pyarrow.array([30, None, 31, 32]).cast(pyarrow.float64()),
}
"""Columns with the types and missing values that the training accepts."""


def ids(*strings: str) -> list[int]:
    return hash_strings(list(strings)).tolist()


SERVED = {
    "request_id": ["p1", "p1", "p2", "p3"],
    "item": [ids("a"), ids("b"), [], []],
    "colour": [ids("red"), [], ids("red"), ids("blue")],
    "shop": ids("s", "t", "u", "s"),
    "user": [1, 2, 2**62 + 1, -1],
    "seen": [ids("a", "b"), [], [], ids("a")],
    "price": pyarrow.array([0.1, 0.0, 0.0, 2.5], pyarrow.float32()),
    "count": pyarrow.array([3, 4, 5, 6], pyarrow.float32()),
    "age": [[30], [], [31], [32]],
}
"""The same values, as a service logs them."""

CHANGES: dict[str, Any] = {
    "item": [ids("a"), ids("b"), [], ids("")],
    "colour": [ids("red"), ids("red"), ids("red"), ids("blue")],
    "shop": ids("s", "t", "u", "t"),
    "user": [1, 2, 2**62, -1],
    "seen": [ids("b", "a"), [], [], ids("a")],
    "price": pyarrow.array(
        [np.nextafter(np.float32(0.1), np.float32(1)), 0, 0, 2.5], pyarrow.float32()
    ),
    "count": pyarrow.array([3, 4, 5, float("nan")], pyarrow.float32()),
    "age": [[30], [0], [31], [32]],
}
"""Column → values of which one row differs."""


@pytest.mark.parametrize("changed", [None, *CHANGES])
def test_only_the_column_that_differs_is_named(changed: str | None, tmp_path: Path) -> None:
    trained = write(tmp_path / "t.parquet", TRAINED)
    served = SERVED if changed is None else {**SERVED, changed: CHANGES[changed]}
    report = compare_files(write(tmp_path / "s.arrows", served), trained)
    assert report.differs == (changed is not None)
    assert [name for name, count in differing(report).items() if count] == [
        *filter(None, [changed])
    ]
    assert list(differing(report)) == list(CHANGES)


def test_rows_are_joined_by_keys_in_any_order(tmp_path: Path) -> None:
    """Log rows of another order, a repeated one, and one without a row of the training."""
    random = np.random.default_rng(5)
    trained = {
        "impression": [f"p{n // 10}" for n in range(1000)],
        "item": list(range(1000)),
        "price": random.random(1000),
    }
    (tmp_path / "t").mkdir()
    for part in (0, 1):
        half = {name: values[part * 500 : part * 500 + 500] for name, values in trained.items()}
        write(tmp_path / f"t/{part}.parquet", half)
    order = [*random.permutation(1000), 7]
    served = {
        "request_id": [*(trained["impression"][n] for n in order), "gone"],
        "item": [*(trained["item"][n] for n in order), 5],
        "price": pyarrow.array([*trained["price"][order], 1.0], pyarrow.float32()),
    }
    (tmp_path / "s").mkdir()
    write(tmp_path / "s/1.arrows", served)
    by = ["request_id=impression", "item"]
    report = compare_files(str(tmp_path / "s"), str(tmp_path / "t"), keys=by)
    assert (report.num_served, report.num_joined, report.differs) == (1002, 1001, False)
    served["price"] = pyarrow.concat_arrays(
        [pyarrow.array([0.5], pyarrow.float32()), served["price"][1:]]
    )
    write(tmp_path / "s/1.arrows", served)
    [price] = compare_files(str(tmp_path / "s"), str(tmp_path / "t"), keys=by).columns
    assert (price.name, price.num_compared, price.num_differing) == ("price", 1001, 1)
    [example] = price.examples
    assert (example.served_row, example.trained_row) == (0, order[0])
    assert example.trained == trained["price"][order[0]]


def test_a_stream_that_a_server_still_writes_is_read_up_to_its_last_batch(tmp_path: Path) -> None:
    path = tmp_path / "s.arrows"
    write(path, {"user": list(range(100))})
    path.write_bytes(path.read_bytes()[:-60])
    trained = write(tmp_path / "t.parquet", {"user": list(range(50))})
    report = compare_files(str(path), trained)
    assert (report.num_served, report.differs) == (50, False)


def test_requests_without_a_sample_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other clients, and calls to the other shards of a service, send none. One server has just begun."""
    log_writer = pytest.importorskip("sparring_serve.server.log_writer", reason="writes the log")
    from sparring_serve.request_log import HEAD, LoggedKind
    from sparring_serve.wire.fields import encode
    from sparring_serve.wire.messages import PullRequest, SampleColumn, TableIds

    folder = tmp_path / "log"
    folder.mkdir()
    writer = log_writer.LogWriter(folder, 1 << 20)
    item = SampleColumn("item", np.array([5, 6]).tobytes())
    for request in (
        PullRequest(request_id="p", sample=(item, SampleColumn("price", b"", bytes(8)))),
        PullRequest((TableIds("item", np.array([5, 6]).tobytes()),), request_id="p"),
    ):
        message = HEAD.pack(LoggedKind.PULL, 1.5, 1) + b"v" + encode(request)
        writer.add(log_writer.read_message(message))
    writer.close()
    (folder / "9.arrows").touch()
    columns = {"page": ["p", "p"], "item": [6, 5], "price": [0.0, 1.0]}
    trained = write(tmp_path / "t.parquet", columns)
    words = ["skew", str(folder), trained, "--key", "request_id=page", "--key", "item"]
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert "joined 2 of 2 served rows" in shown
    assert "left out 1 requests without a sample" in shown
    assert "price: 1 of 2 values differ" in shown


def test_exit_code_and_output_name_the_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = write(tmp_path / "t.parquet", {"user": ["a", "b"], "label": [0, 1]})
    served = write(tmp_path / "s.parquet", {"user": ids("a", "c"), "extra": [1, 2]})
    assert main(["skew", served, trained]) == 1
    shown = capsys.readouterr().out
    assert "user: 1 of 2 values differ" in shown
    assert f"served row 1: {ids('c')[0]}; trained row 1: 'b'" in shown
    assert "only the log has them: extra" in shown
    assert main(["skew", served, trained, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["columns"][0]["num_differing"] == 1
    assert main(["skew", trained, trained]) == 0


@pytest.mark.parametrize(
    ("served", "options", "message"),
    [
        ({"user": [1, 2, 3]}, [], "the log has 3 and the data of the training 2; give a column"),
        ({"user": [1], "n": [5]}, ["--key", "n=user"], "no column is in both"),
        ({"user": [5], "n": [5]}, ["--key", "user"], "none of the 1 rows"),
        ({"user": [1], "n": [5]}, ["--key", "other"], "has no column 'other'; it has user, n"),
        ({"user": [1], "n": [1]}, ["--key", "n"], "rows 0 and 1 .* have the same n; add a further"),
        ({"user": [1.5], "n": [1]}, ["--key", "user"], "must be one integer or string per row"),
    ],
)
def test_rows_that_cannot_be_joined_are_rejected(
    served: Any, options: list[str], message: str, tmp_path: Path
) -> None:
    trained = write(tmp_path / "t.parquet", {"user": [1, 2], "n": [1, 1]})
    with pytest.raises(SparringError, match=message):
        compare_files(write(tmp_path / "s.parquet", served), trained, keys=options[1:])
