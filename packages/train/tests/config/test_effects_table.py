"""Effects of the keys of `data` of kind `table`."""

from __future__ import annotations

import csv as python_csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet

from sparring import hash_strings
from sparring.errors import ConfigError, DataError
from sparring_train import find_strings

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from .config_runs import Ran, Runs, shows

_TABLE = """
seed: 3
threads: 1
data:
  kind: table
  path: table.csv
  label: clicked
  categorical: [user, item, tags]
  lists: [tags]
  required: [user, item]
  separator: "|"
  numeric: [price]
  batch_size: 16
  split: {column: part}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}
storage: {backend: memory}
"""
"""80 rows, of which 16 are for the test; 48 in `fewer.csv`; those of `bad.csv` have one bad row."""

_FACTORS = "model={kind: matrix_factorization, dim: 2}"
_NUMBERS = "model={kind: matrix_factorization, dim: 3}"


def _table(num_rows: int) -> Any:
    random = np.random.default_rng(7)
    tags = [
        "|".join(f"t{n}" for n in random.integers(0, 9, random.integers(0, 3)))
        for _ in range(num_rows)
    ]
    return pyarrow.table(
        {
            "user": [f"{n}" for n in random.integers(0, 10, num_rows)],
            "item": [f"i{n}" for n in random.integers(0, 12, num_rows)],
            "tags": tags,
            "price": random.normal(0, 3, num_rows),
            "clicked": random.integers(0, 2, num_rows),
            "w": random.gamma(2, 1, num_rows),
            "at": np.arange(num_rows),
            "part": ["test" if at % 5 == 0 else "train" for at in range(num_rows)],
        }
    )


def _write_lines(path: Path, rows: list[dict[str, Any]], delimiter: str) -> None:
    lines = [list(rows[0]), *(list(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(map(delimiter.join, lines)))


def _write_missing_users(path: Path) -> None:
    rows = _table(80).to_pylist()
    for row in rows[1::10]:
        row["user"] = ""
    _write_lines(path, rows, ",")


def _ran(runs: Runs, *overrides: str, ranks: int = 1) -> Ran:
    if not (runs.folder / "table.csv").exists():
        whole, fewer = _table(80), _table(48)
        csv.write_csv(whole, runs.folder / "table.csv")
        csv.write_csv(fewer, runs.folder / "fewer.csv")
        lines = (runs.folder / "table.csv").read_text().splitlines()
        lines[2] = lines[2].replace(lines[2].split(",")[3], "cheap")
        (runs.folder / "bad.csv").write_text("\n".join(lines))
        listed = [each.split("|") for each in whole.column("tags").to_pylist()]
        parquet.write_table(
            whole.set_column(2, "tags", pyarrow.array(listed)),
            runs.folder / "table.parquet",
            row_group_size=10,
        )
    given = ("collective.backend=threads", *overrides) if ranks > 1 else overrides
    return runs._run(_TABLE, given, ranks)[0]


@shows("data:table.kind", "data:table.label", "data:table.batch_size")
def test_effects_of_table_kind_label_and_batch_size(runs: Runs) -> None:
    assert _ran(runs).samples == [16, 16, 16, 16]
    assert _ran(runs, "data.batch_size=40").samples == [40, 24]
    assert _ran(runs).end.metrics.keys() == {"auc", "log_loss"}
    assert _ran(runs, "data.label=price", "data.numeric=[]", _NUMBERS).end.metrics.keys() == {
        "rmse"
    }


@shows("data:table.path")
def test_effect_of_table_path(runs: Runs) -> None:
    assert sum(_ran(runs, "data.path=fewer.csv").samples) == 38


@shows("data:table.version", "data:table.filter")
def test_effects_of_table_version_and_filter(runs: Runs) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    _ran(runs)
    rows = parquet.read_table(runs.folder / "table.parquet")
    rows = rows.append_column("half", pyarrow.array(["a"] * 40 + ["b"] * 40))
    for part in (rows.slice(0, 48), rows.slice(48)):
        deltalake.write_deltalake(runs.folder / "lake", part, mode="append", partition_by="half")
    path = f"data.path=delta://{runs.folder}/lake"
    newest = _ran(runs, path)
    assert (sum(newest.samples), newest.end.extra["data_version"]) == (64, 1)
    first = _ran(runs, path, "data.version=0")
    assert (sum(first.samples), first.end.extra["data_version"]) == (38, 0)
    assert sum(_ran(runs, path, "data.filter=[half = b]").samples) == 32
    with pytest.raises(ConfigError, match=r"data\.version: requires a table"):
        _ran(runs, "data.version=0")


@shows("data:table.categorical", "data:table.share_tables")
def test_effects_of_table_categorical_and_share_tables(runs: Runs) -> None:
    assert set(_ran(runs).rows) == {"user", "item", "tags"}
    assert set(_ran(runs, "data.share_tables={user: item}").rows) == {"item", "tags"}
    some = "data.categorical=[item, tags]"
    assert set(_ran(runs, some, "data.required=[]").rows) == {"item", "tags"}


@shows("data:table.numeric", "data:table.log1p", "data:table.weight", "data:table.types")
def test_effects_of_table_numeric_log1p_weight_and_types(runs: Runs) -> None:
    numbers = ("data.label=price", "data.numeric=[]", _FACTORS)
    assert _ran(runs, *numbers, "data.weight=w").losses != _ran(runs, *numbers).losses
    without = _ran(runs).losses
    for given in ("log1p=[price]", "weight=w", "numeric=[price, w]", "types={user: string}"):
        assert _ran(runs, f"data.{given}").losses != without, given


@shows("data:table.lists", "data:table.separator")
def test_effects_of_table_lists_and_separator(runs: Runs) -> None:
    assert _ran(runs).rows["tags"] == 9
    assert _ran(runs, "data.lists=[]").rows["tags"] > 9
    assert _ran(runs, 'data.separator="t"').rows["tags"] > 9


@shows("data:table.delimiter", "data:table.decimal", "data:table.missing_values")
def test_effects_of_table_delimiter_decimal_and_missing_values(runs: Runs) -> None:
    own = _ran(runs)
    german = _table(80).to_pylist()
    for row in german:
        row["price"] = str(row["price"]).replace(".", ",")
        row["tags"] = row["tags"] or "?"
    _write_lines(runs.folder / "german.csv", german, ";")
    keys = ["data.path=german.csv", 'data.delimiter=";"', 'data.decimal=","']
    read = _ran(runs, *keys, "data.missing_values=['?']")
    assert (read.losses, read.rows) == (own.losses, own.rows)
    assert _ran(runs, *keys).rows["tags"] == own.rows["tags"] + 1
    with pytest.raises(DataError, match=r"found one column, 'user;item;.*set data\.delim"):
        _ran(runs, keys[0])
    with pytest.raises(DataError, match=r"column 'price': found '.*,.*data\.decimal"):
        _ran(runs, *keys[:2])


@shows(
    "data:table.encoding", "data:table.skip_lines", "data:table.trim", "data:table.thousands",
    "data:table.number_signs", "data:table.date_order",
)  # fmt: skip
def test_effects_of_how_texts_are_written(runs: Runs) -> None:
    plain = _table(80).to_pylist()
    for row in plain:
        row["item"] += "é"
        row["price"] = f"{row['price'] * 1000:.2f}"
        row["at"] = f"2024-{row['at'] % 3 + 1:02}-{row['at'] % 9 + 10} 10:00:00"
    _write_lines(runs.folder / "plain.csv", plain, ",")
    split = ["data.split={time: 0.2}", "data.time=at"]
    own = _ran(runs, "data.path=plain.csv", *split)
    for row in plain:
        row["user"] = f" {row['user']} "
        row["price"] = f"{float(row['price']):,.2f} €"
        row["at"] = "/".join(reversed(row["at"][:10].split("-"))) + " 10:00"
    _write_lines(runs.folder / "odd.csv", plain, ";")
    text = (runs.folder / "odd.csv").read_text()
    (runs.folder / "odd.csv").write_text(f"sep=;\n{text}", encoding="utf-16")
    keys = {
        "encoding": "utf-16", "skip_lines": "1", "trim": "true", "thousands": '","',
        "number_signs": "['€']", "date_order": "dmy",
    }  # fmt: skip
    odd = ["data.path=odd.csv", 'data.delimiter=";"', *split]
    read = _ran(runs, *odd, *(f"data.{key}={value}" for key, value in keys.items()))
    assert (read.losses, read.rows) == (own.losses, own.rows)
    for left in keys:
        rest = [f"data.{key}={value}" for key, value in keys.items() if key != left]
        if left == "trim":  # integers with spaces are strings
            assert _ran(runs, *odd, *rest).losses != own.losses
        else:
            with pytest.raises(DataError, match=r"odd\.csv"):
                _ran(runs, *odd, *rest)


@shows("data:table.form")
def test_effect_of_table_form(runs: Runs) -> None:
    rows = _table(80).to_pylist()
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    _ran(runs)
    (runs.folder / "log").write_text(lines)
    assert _ran(runs, "data.path=log", "data.form=json").losses == _ran(runs).losses
    with pytest.raises(DataError, match="must all end in"):
        _ran(runs, "data.path=log")


@shows("data:table.label_values")
def test_effect_of_table_label_values(runs: Runs) -> None:
    rows = _table(80).to_pylist()
    for row in rows:
        row["clicked"] = "yes" if row["clicked"] else "no"
    _write_lines(runs.folder / "words.csv", rows, ",")
    words = ("data.path=words.csv", "data.label_values={yes: 1, no: 0}")
    assert _ran(runs, *words).losses == _ran(runs).losses
    assert _ran(runs, words[0], "data.label_values={no: 1, yes: 0}").losses != _ran(runs).losses
    with pytest.raises(
        DataError, match=r"found 'no', expected one of 'yes', because of data\.label_val"
    ):
        _ran(runs, words[0], "data.label_values={yes: 1}")


@shows("data:table.required")
def test_effect_of_table_required(runs: Runs) -> None:
    assert sum(_ran(runs).samples) == 64
    lines = (runs.folder / "table.csv").read_text().splitlines()
    header, first = (next(python_csv.reader([line])) for line in lines[:2])
    first[header.index("item")] = ""
    (runs.folder / "lacking.csv").write_text("\n".join([*lines, ",".join(first)]) + "\n")
    lacking = ["data.path=lacking.csv", "data.split={fraction: 0.2}"]
    with pytest.raises(DataError, match=r"lacking.csv, row 82, column 'item': found None"):
        _ran(runs, *lacking)
    count = sum(_ran(runs, *lacking, "data.required=[]").samples)
    assert sum(_ran(runs, *lacking, "data.bad_rows=skip").samples) == count - 1
    numbers = ("data.label=price", "data.numeric=[]", _FACTORS)
    assert _ran(runs, *numbers).end.metrics.keys() == {"rmse"}
    with pytest.raises(ConfigError, match=r"may be missing in rows; add it to data\.required"):
        _ran(runs, *numbers, "data.required=[user]")


@shows("data:table.split.column", "data:table.split.test")
def test_effects_of_split_column_and_test(runs: Runs) -> None:
    assert sum(_ran(runs, "data.split.test=train").samples) == 16


@shows("data:table.split.fraction")
def test_effect_of_split_fraction(runs: Runs) -> None:
    assert 30 < sum(_ran(runs, "data.split={fraction: 0.5}").samples) < 50


@shows("data:table.split.exact_fraction")
def test_effect_of_split_exact_fraction(runs: Runs) -> None:
    assert sum(_ran(runs, "data.split={exact_fraction: 0.5}").samples) == 40


@shows("data:table.split.key")
def test_effect_of_split_key(runs: Runs) -> None:
    samples = sum(_ran(runs, "data.split={fraction: 0.5, key: item}").samples)
    assert samples not in (80, sum(_ran(runs, "data.split={fraction: 0.5}").samples))


@shows("data:table.draw")
def test_effect_of_table_draw(runs: Runs) -> None:
    found = [_ran(runs, "data.split={fraction: 0.5}", f"data.draw={way}") for way in _DRAWS]
    assert found[0].losses == found[1].losses != found[2].losses


_DRAWS = ("null", "row", "position")


@shows("data:table.split.files")
def test_effect_of_split_files(runs: Runs) -> None:
    _ran(runs)
    (runs.folder / "days").mkdir(exist_ok=True)
    for name, source in (("day_1.csv", "table.csv"), ("day_2.csv", "fewer.csv")):
        (runs.folder / "days" / name).write_bytes((runs.folder / source).read_bytes())
    days = ("data.path=days", "data.split={files: day_2*}")
    assert sum(_ran(runs, *days).samples) == 80
    with pytest.raises(DataError, match="found no row for the test"):
        _ran(runs, days[0], "data.split={files: day_3*}")


@shows("data:table.column_names")
def test_effect_of_table_column_names(runs: Runs) -> None:
    own = _ran(runs)
    header, *lines = (runs.folder / "table.csv").read_text().splitlines()
    (runs.folder / "bare.csv").write_text("\n".join(lines))
    names = header.replace('"', "")
    bare = ("data.path=bare.csv", f"data.column_names=[{names}]")
    read = _ran(runs, *bare)
    assert (read.losses, read.rows) == (own.losses, own.rows)
    with pytest.raises(DataError, match=r"row 1: column 'user' is missing"):
        _ran(runs, bare[0])
    with pytest.raises(DataError, match=r"column_names: column 'w' is missing"):
        _ran(runs, bare[0], f"data.column_names=[{names.replace(',w,', ',v,')}]", "data.weight=w")
    with pytest.raises(
        DataError,
        match=r"row 1: found 8 fields .*expected 9 fields as in data\.column_names",
    ):
        _ran(runs, bare[0], f"data.column_names=[{names},more]")
    with pytest.raises(ConfigError, match=r"column_names: must contain each column once"):
        _ran(runs, bare[0], f"data.column_names=[{names},user]")


@shows("data:table.missing_ids")
def test_effect_of_table_missing_ids(runs: Runs) -> None:
    own = _ran(runs)
    _write_missing_users(runs.folder / "unknown.csv")
    unknown = ("data.path=unknown.csv", "data.required=[]")
    read = _ran(runs, *unknown, "data.missing_ids={user: 77}")
    assert read.rows["user"] == own.rows["user"] + 1
    assert _ran(runs, *unknown).rows["user"] == own.rows["user"]
    with pytest.raises(ConfigError, match=r"contains a column that is also in data\.required"):
        _ran(runs, "data.missing_ids={user: 77}")


@shows("data:table.minimum")
def test_effect_of_table_minimum(runs: Runs) -> None:
    own = _ran(runs).losses
    assert _ran(runs, "data.minimum={price: -1000}").losses == own
    assert _ran(runs, "data.minimum={price: 0}").losses != own
    with pytest.raises(
        ConfigError, match=r"minimum: contains a column that is not in data\.numeric"
    ):
        _ran(runs, "data.minimum={user: 0}")


@shows("data:table.time", "data:table.split.time", "data:table.split.time_from")
def test_effects_of_table_time_split_time_and_split_time_from(runs: Runs) -> None:
    assert sum(_ran(runs, "data.time=at", "data.split={time: 0.25}").samples) == 60
    assert sum(_ran(runs, "data.time=at", "data.split={time_from: 70}").samples) == 70


@shows("data:table.split.leave_one_out")
def test_effect_of_split_leave_one_out(runs: Runs) -> None:
    assert sum(_ran(runs, "data.split={leave_one_out: user}").samples) == 70


@shows("data:table.shuffle")
def test_effect_of_table_shuffle(runs: Runs) -> None:
    ordered = _ran(runs, "data.shuffle=false")
    assert ordered.losses != _ran(runs).losses
    assert ordered.losses == _ran(runs, "data.shuffle=false", "training.epochs=1").losses


@shows("data:table.read", "data:table.lanes")
def test_effects_of_table_read_and_lanes(runs: Runs) -> None:
    # Ranks are threads here: torch models would share one generator for initial values.
    files = ("data.path=table.parquet", "data.label=price", "data.numeric=[]", _NUMBERS)
    whole = _ran(runs, *files).losses
    assert _ran(runs, *files, "data.lanes=3").losses != whole
    assert np.allclose(_ran(runs, *files, ranks=2).losses, whole, rtol=1e-5)
    own = _ran(runs, *files, "data.read=own", ranks=2).losses
    assert len(own) == len(whole)
    assert not np.allclose(own, whole, rtol=1e-5)


@shows(
    "data:table.history.of",
    "data:table.history.by",
    "data:table.history.length",
    "data:table.history.name",
)
def test_effects_of_history_of_by_length_and_name(runs: Runs) -> None:
    keys = ("data.time=at", "data.lists=[]", "data.categorical=[user, item]")
    keys += ("data.required=[item]",)
    losses = [_ran(runs, *keys).losses]
    for given in ("", "of: user", "by: w", "length: 1"):
        losses.append(_ran(runs, *keys, f"data.history={{{given}}}").losses)
    assert len(set(map(tuple, losses))) == len(losses)
    sequence = "model={kind: sequence, history: before, positive: 1}"
    ranked = _ran(runs, *keys, "data.history={name: before}", sequence)
    assert "recall@10" in ranked.end.metrics


@shows("data:table.dictionary")
def test_effect_of_table_dictionary(runs: Runs) -> None:
    with pytest.raises(DataError, match=r"snapshots\.url is null"):
        _ran(runs, "data.dictionary=true")
    _ran(runs, "data.dictionary=true", "snapshots.url=named")
    last = runs.snapshot("named").url
    assert find_strings(last, "item", hash_strings(["i3", "i99"])) == ["i3", None]


@shows("data:table.bad_rows")
def test_effect_of_table_bad_rows(runs: Runs) -> None:
    with pytest.raises(DataError, match=r"bad\.csv, row 3, column 'price': found 'cheap'"):
        _ran(runs, "data.path=bad.csv")
    skipped = _ran(runs, "data.path=bad.csv", "data.bad_rows=skip")
    assert skipped.end.skipped == {"rows_skipped": 1}
    assert sum(skipped.samples) == 63


@shows("data:synthetic_criteo.validation_samples")
def test_effect_of_synthetic_criteo_validation_samples(runs: Runs) -> None:
    few, many = (runs.clicks(f"data.validation_samples={count}") for count in (20, 64))
    assert few.end.validation != many.end.validation
    assert few.losses == runs.clicks().losses


WAYS = (
    "fraction", "exact_fraction", "time", "time_from", "column", "files", "leave_one_out", "value", "key",
)  # fmt: skip


@shows(*(f"data:table.validation.{way}" for way in WAYS))
def test_effects_of_the_ways_of_validation(runs: Runs) -> None:
    trained = {}
    for way in (
        "null",
        "{fraction: 0.4}",
        "{fraction: 0.4, key: item}",
        "{exact_fraction: 0.25}",
        "{time: 0.25}",
        "{time_from: 70}",
        "{column: clicked, value: 1}",
        "{leave_one_out: user}",
    ):
        # The column has only one value, for which no AUC is defined.
        watch = () if way == "null" else ("training.watch=log_loss",)
        ran = _ran(runs, "data.time=at", f"data.validation={way}", *watch)
        trained[way] = sum(ran.samples)
        assert (ran.end.best_step is None) == (way == "null")
    assert trained["null"] == 64
    assert trained["{exact_fraction: 0.25}"] == 48
    assert trained["{time: 0.25}"] == 48
    # Places 70 to 79 are 10 rows, two of which are for the test.
    assert trained["{time_from: 70}"] == 56
    assert trained["{leave_one_out: user}"] == 54
    assert trained["{fraction: 0.4}"] < 50
    assert trained["{fraction: 0.4, key: item}"] not in (64, trained["{fraction: 0.4}"])
    assert trained["{column: clicked, value: 1}"] < 50
    (runs.folder / "parts").mkdir(exist_ok=True)
    for name in ("table.csv", "fewer.csv"):
        (runs.folder / "parts" / name).write_bytes((runs.folder / name).read_bytes())
    both = _ran(runs, "data.path=parts", "data.validation={files: few*}")
    assert sum(both.samples) == 64
    assert both.end.best_step is not None
