"""`sparring init` on broken rows, other delimiters, several files, and without a label."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from sparring_cli.application import main
from sparring_train.config.reading.loader import parse_config
from sparring_train.data.table import sample as sampling
from sparring_train.data.table import summary as looking
from sparring_train.data.table.text import sample as sample_csv


@pytest.fixture(autouse=True)
def _in_a_separate_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to the folder that contains the files and the saves of runs."""
    monkeypatch.chdir(tmp_path)


def lines(
    num_rows: int = 600, delimiter: str = ",", text: str = "u{user},i{item},{price:.2f},{label}"
) -> list[str]:
    random = np.random.default_rng(3)
    rows = random.integers(0, (40, 25, 2), (num_rows, 3)).tolist()
    prices = random.lognormal(3, 1, num_rows).tolist()
    return [
        text.replace(",", delimiter).format(user=user, item=item, price=price, label=label)
        for (user, item, label), price in zip(rows, prices, strict=True)
    ]


def write(name: str, header: str, rows: list[str], encoding: str = "utf-8") -> None:
    text = "\n".join([header, *rows, ""]).encode(encoding)
    Path(name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def written(
    capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> tuple[str, str]:
    assert main(["init", *arguments]) == status
    found = capsys.readouterr()
    return found.out, " ".join(found.err.split())


def trained(text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    Path("my.yaml").write_text(text)
    assert main(["train", "my.yaml", "threads=1", "data.batch_size=256", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_broken_rows_are_counted_and_left_out(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lines()
    rows[9:9] = ["u1,i2,3.5,1,more", "u1", "u1,i2,cheap,1", "u1,i2,3.5,perhaps", "u1,i2,3.5,"]
    write(name, "user,item,price,clicked", rows)
    text, said = written(capsys, name)
    assert "# 5 of the 605 rows that were read are bad. The first one:" in text
    assert f"{name}, row 11: found 5 fields in 'u1,i2,3.5,1,more', expected 4 fields" in text
    assert f"bad rows: 5; the first: {Path(name).absolute()}, row 11: found 5 fields" in said
    config: Any = parse_config(text)
    assert (config.data.bad_rows, config.data.numeric) == ("skip", ("price",))
    assert trained(text, capsys)["rows_skipped"] == 5
    # The row of a bad value is known if no row before it was left out.
    write(name, "user,item,price,clicked", rows[11:])
    assert "row 2, column 'price': found 'cheap'" in written(capsys, name)[0]
    write(name, "user,item,price,clicked", lines())
    assert "bad" not in "".join(written(capsys, name))


def test_unused_columns_cause_no_bad_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = lines()
    rows[9] = "u1,i2,cheap,1"
    write("log.csv", "user,item,price,clicked", rows)
    assert "bad_rows" not in written(capsys, "log.csv", "skip=price")[0]
    # As ids, all values are valid, although all of the first rows are numbers.
    write("log.csv", "user,item,code,clicked", [each.replace(".", "") for each in rows])
    config: Any = parse_config(written(capsys, "log.csv", "categorical=code")[0])
    assert (config.data.bad_rows, config.data.types) == ("refuse", {})
    write(
        "log.csv",
        "user,item,code,clicked",
        [f"u{n % 9},i{n % 7},{n % 99 if n < 1150 else 'x'},{n % 2}" for n in range(1200)],
    )
    text, _ = written(capsys, "log.csv", "categorical=code")
    config = parse_config(text)
    assert (config.data.bad_rows, config.data.types) == ("refuse", {"code": "string"})
    assert trained(text, capsys)["rows"]["code"] == 100


def test_german_files_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"Kunde {n % 40};Größe {n % 25};{n % 9}.{n % 7}00,5;{'ja' if n % 3 else 'nein'}"
        for n in range(600)
    ]
    rows.insert(0, "kaputt;zeile")
    write("log.csv", "Kunde;Grüße;Preis;gekauft", rows, "utf-8-sig")
    text, said = written(capsys, "log.csv", "label=gekauft")
    assert said.endswith(
        "row 2: found 2 fields in 'kaputt;zeile', expected 4 fields as in the header"
    )
    data: Any = parse_config(text).data
    assert (data.delimiter, data.decimal, data.numeric) == (";", ",", ("Preis",))
    assert data.label_values == {"ja": 1, "nein": 0}
    assert data.categorical == ("Kunde", "Grüße")
    assert trained(text, capsys)["rows"] == {"Kunde": 40, "Grue": 25}


def test_texts_that_mean_a_missing_value_are_recognized(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"{'NULL' if n % 9 == 0 else f'u{n % 40}'},i{n % 25},{'?' if n % 5 == 0 else n / 4},"
        f"{'NA' if n % 7 == 0 else n % 60},{n % 2}"
        for n in range(600)
    ]
    write("log.csv", "user,item,price,age,clicked", rows)
    text, said = written(capsys, "log.csv")
    data: Any = parse_config(text).data
    # NA among numbers needs no setting.
    assert data.missing_values == ("NULL", "?")
    assert data.numeric == ("price", "age")
    assert "user: 'NULL' is read as a missing value; remove it from missing_values if" in said
    assert "67 missing" in next(each for each in text.splitlines() if "- user " in each)
    text, _ = written(capsys, "log.csv", "missing_values=['?']")
    assert parse_config(text).data.missing_values == ("?",)  # type: ignore[attr-defined]
    assert "missing" not in next(each for each in text.splitlines() if "- user " in each)


def test_numbers_with_two_decimal_signs_stop(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"u{n % 9};i{n % 7};{n},5;{n},25;{n}.5;{n % 2}" for n in range(600)]
    write("log.csv", "user;item;price;cost;weight;clicked", rows)
    _, said = written(capsys, "log.csv", status=2)
    assert "weight: its numbers are not written as in other columns" in said
    assert said.endswith("sparring init log.csv skip=weight")
    text, _ = written(capsys, "log.csv", "skip=weight")
    assert parse_config(text).data.numeric == ("price", "cost")  # type: ignore[attr-defined]
    text, said = written(capsys, "log.csv", "decimal='.'")
    assert parse_config(text).data.numeric == ("weight",)  # type: ignore[attr-defined]
    assert "- price, cost: nearly all values are distinct, like row numbers" in said


@pytest.mark.parametrize("end", ["csv", pytest.param("csv.gz", marks=pytest.mark.slow), "parquet"])
def test_all_files_are_read(
    end: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are missing in one file cannot be used.

    The batch size counts the rows of all files.
    """
    for number in range(4):
        columns: dict[str, Any] = {
            "user": [f"u{n % 90}" for n in range(8_000)],
            "item": [str(n % 70) if number < 2 else f"sku{n % 70}" for n in range(8_000)],
            "clicked": np.arange(8_000) % 2,
        }
        if number == 3:
            columns["extra"] = ["a", "b"] * 4_000
        if end == "parquet":
            parquet.write_table(pyarrow.table(columns), f"p{number}.{end}")
        else:
            rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
            write(f"p{number}.{end}", ",".join(columns), rows)
    monkeypatch.setattr(sampling, "SAMPLE_ROWS", 3200)
    for name in ("_MIN_BLOCK_BYTES", "_MAX_BLOCK_BYTES"):
        monkeypatch.setattr(sample_csv, name, 1 << 13)
    text, said = written(capsys, f"*.{end}")
    looked = looking.summarize_table(f"*.{end}")
    assert f"# Based on {looked.num_sampled:,} of" in text
    assert 3200 <= looked.num_sampled < 12_000
    assert abs(looked.num_rows - 32_000) < (1 if end == "parquet" else 600)
    assert looked.sample.is_exact == (end == "parquet")
    data: Any = parse_config(text).data
    assert data.batch_size == 128
    assert data.types == ({} if end == "parquet" else {"item": "string"})
    assert "extra: it is missing in " in said
    assert f"p0.{end} and 2 more" in said
    assert "# left out: extra" in text
    _, said = written(capsys, f"*.{end}", "label=extra", status=2)
    assert "column 'extra' cannot be used: it is missing in" in said


def test_the_estimated_number_of_rows_is_at_least_the_number_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first rows are the longest, so the estimated number of rows is too low.
    write(
        "log.csv",
        "user,item,clicked",
        [f"u{n},{'i' * 90}{n % 9},{n % 2}" for n in range(3000)] + ["u,i,0"] * 50,
    )
    monkeypatch.setattr(sampling, "SAMPLE_ROWS", 2500)
    for name in ("_MIN_BLOCK_BYTES", "_MAX_BLOCK_BYTES"):
        monkeypatch.setattr(sample_csv, name, 1 << 14)
    summary = looking.summarize_table("log.csv")
    assert summary.num_rows >= summary.num_sampled >= 2500
    assert not summary.sample.is_exact


def test_parquet_files_of_different_types_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    rest = {"user": [f"u{n % 9}" for n in range(40)], "clicked": np.arange(40) % 2}
    tags = {"tags": [["a"]] * 20 + [["b"]] * 20}
    parquet.write_table(
        pyarrow.table({**rest, **tags, "item": np.arange(40) % 7, "note": pyarrow.nulls(40)}),
        "a.parquet",
    )
    parquet.write_table(
        pyarrow.table(
            {**rest, **tags, "item": [f"i{n % 7}" for n in range(40)], "note": ["x", "y"] * 20}
        ),
        "b.parquet",
    )
    text, said = written(capsys, "*.parquet")
    data: Any = parse_config(text).data
    assert data.categorical == ("user", "tags", "note")
    assert "item: it has whole numbers in " in said
    assert " and strings in " in said


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("u1,i1,2.5,0", "u{},i{},2.5,{}", "row contains '2.5', which is no name of a column; name all"),
        ("1,1,2.5,0", "{},{},2.5,{}", "log.csv 'column_names=[column_1,column_2,column_3,column_4]'"),
        ("user,item,label", "", "found no row, expected examples"),
        ("", "", "row 1: found nothing, expected a header with the names of columns; add it, or"),
        ("user,item,outcome", "u{},i{},won{}", "'label_values={won0: 1, won1: 0}'"),
        ("user,item,outcome", 'u{},i{},"{}\nx', "row 2: found a quote that is not closed"),
    ],
)  # fmt: skip
def test_unreadable_files_are_reported(
    header: str, row: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    label = ["label=outcome"] if "outcome" in header else []
    write("log.csv", header, [row.format(n % 9, n % 7, n % 2) for n in range(40)] if row else [])
    if not header:
        Path("log.csv").write_text("")
    assert message in written(capsys, "log.csv", *label, status=2)[1]


def test_a_column_of_two_values_is_the_label_of_a_click_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for values in (("0", "1"), ("no", "yes"), ("False", "True")):
        rows = [f"u{n % 9},i{n % 7},{values[n % 2]}" for n in range(100)]
        write("log.csv", "user,item,returned", rows)
        said = written(capsys, "log.csv", status=2)[1]
        assert (
            "no column has a usual name of labels; the values of returned could be labels" in said
        )
        assert said.endswith("sparring init log.csv label=returned")
        config: Any = parse_config(written(capsys, "log.csv", "--yes")[0])
        assert (config.model.kind, config.data.label) == ("dlrm", "returned")
        for word in ("skip=returned", "label=none"):
            text = written(capsys, "log.csv", word)[0]
            assert parse_config(text).model.kind == "two_towers"
    write("log.csv", "user,item,bought", rows)
    assert parse_config(written(capsys, "log.csv")[0]).data.label == "bought"  # type: ignore[attr-defined]
    write(
        "log.csv",
        "user,item,seen,returned",
        [f"u{n % 9},i{n % 7},{n // 2 % 2},{n % 2}" for n in range(100)],
    )
    said = written(capsys, "log.csv", status=2)[1]
    assert "the values of seen, returned could be labels (one of seen, returned, none)" in said


class Terminal(io.StringIO):
    """Standard input with the answers of a person, or standard error that is shown to one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "answers", "label"),
    [
        (["returned"], "\n", "returned"),
        (["returned"], "none\n", None),
        (["seen", "returned"], "what\nreturned\n", "returned"),
        (["seen", "returned"], "\n", "seen"),
    ],
)
def test_a_person_at_a_terminal_chooses_the_label(
    columns: list[str],
    answers: str,
    label: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [f"u{n % 9},i{n % 7},{n // 2 % 2},{n % 2}" for n in range(100)]
    rows = rows if len(columns) > 1 else [each[:-2] for each in rows]
    write("log.csv", f"user,item,{','.join(columns)}", rows)
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    monkeypatch.setattr(sys, "stderr", shown)
    text, _ = written(capsys, "log.csv")
    data: Any = parse_config(text).data  # the question is on standard error only
    assert data.label == label
    assert "could be labels\nlabel (" in shown.getvalue()


def test_keys_of_the_configuration_may_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    write("log.csv", "user,item,price,clicked", lines())
    given = (
        "bad_rows=skip",
        "batch_size=99",
        "split={fraction: 0.2}",
        "training.epochs=3",
        "seed=7",
        "optimizer.sparse.lr=0.5",
        "threads=2",
        "metrics.every_seconds=5",
        "data.log1p=[price]",
    )
    text, _ = written(capsys, "log.csv", *given)
    plain, _ = written(capsys, "log.csv")
    config: Any = parse_config(text)
    assert (config.data.bad_rows, config.data.batch_size) == ("skip", 99)
    assert (config.data.split.fraction, config.data.log1p) == (0.2, ("price",))
    assert (config.training.epochs, config.seed, config.threads) == (3, 7, 2)
    assert config.optimizer.sparse.model_dump()["lr"] == 0.5
    assert set(plain.splitlines()) - set(text.splitlines()) == {
        "seed: 1",
        "  split: {fraction: 0.1}  # a random tenth is the test",
        "  batch_size: 16",
        "  sparse: {name: adagrad, lr: 0.03}",
        "  epochs: 1",
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bad_row=skip", "key of data, such as bad_rows=skip.*did you mean bad_rows?"),
        ("bad_rows=skipp", "bad_rows.*'refuse' or 'skip'|bad_rows.*refuse"),
        ("delimiter=;;;", "data.delimiter.*at most 2 char"),
        ("path=x.csv", "expected ROLE=COLUMN"),
        ("training.epoch=3", "'epoch' in training .did you mean epochs"),
    ],
)
def test_keys_that_do_not_match_are_rejected(
    word: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    write("log.csv", "user,item,price,clicked", lines())
    text, said = written(capsys, "log.csv", word, status=2)
    assert text == ""
    assert re.search(message, said), said


def test_user_and_item_of_ratings_are_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "log.csv",
        "country,user_id,item_id,rating",
        [f"c{n % 3},u{n % 9},i{n % 7},{n % 5}" for n in range(90)],
    )
    config: Any = parse_config(written(capsys, "log.csv")[0])
    assert (config.model.user, config.model.item) == ("user_id", "item_id")
    assert config.data.required == ("user_id", "item_id")


def test_times_in_utc_are_times(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"u{n % 9},i{n % 7},2024-01-{1 + n % 28:02}T10:00:00Z,{n % 2}" for n in range(200)]
    write("log.csv", "user,item,at,clicked", rows)
    text, _ = written(capsys, "log.csv")
    config: Any = parse_config(text)
    assert (config.data.time, config.data.split.time) == ("at", 0.1)
    assert trained(text, capsys)["steps"] == 1


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("other", ["uint64", "int64"])
def test_unsigned_ids_of_parquet_files_are_trained(
    lists: bool, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest ids are in one file, and the other has another type of whole numbers."""
    pytest.importorskip("sparring_torch", reason="trains with torch")
    for name, kind, first in (("a", other, 9), ("b", "uint64", 2**64 - 1)):
        ids: list[Any] = [first, 7] * 40
        users = pyarrow.array([[each] for each in ids] if lists else ids, _kind(kind, lists))
        columns = {"user": users, "item": [1, 2] * 40, "clicked": [0, 1, 1, 0] * 20}
        Path("logs").mkdir(exist_ok=True)
        parquet.write_table(pyarrow.table(columns), f"logs/{name}.parquet")
    assert main(["init", "logs", "label=clicked", "-o", "run.yaml"]) == 0
    data: Any = parse_config(Path("run.yaml").read_text()).data
    assert data.types == {"user": "unsigned"}
    assert main(["train", "run.yaml", "--json"]) == 0
    capsys.readouterr()
    assert main(["get", "run", "user", str(2**64 - 1), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == -1


def test_numbers_without_a_common_type_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for name, kind, user in (("a", "int64", -1), ("b", "uint64", 2**64 - 1)):
        users = pyarrow.array([user, 7] * 40, _kind(kind, is_list=False))
        columns = {"user": users, "item": [1, 2] * 40, "clicked": [0, 1] * 40}
        parquet.write_table(pyarrow.table(columns), f"{name}.parquet")
    text, said = written(capsys, "*.parquet", "label=clicked", "categorical=item")
    assert "user: its numbers have no common type" in said
    data: Any = parse_config(text).data
    assert data.categorical == ("item",)


def _kind(name: str, is_list: bool) -> Any:
    plain = pyarrow.type_for_alias(name)
    return pyarrow.list_(plain) if is_list else plain
