"""What `sparring init` and `sparring train FILE` understand of files as they occur in the field."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from sparring_cli.application import main
from sparring_train.config.reading.loader import parse_config

Row = Callable[[int], str]


@pytest.fixture(autouse=True)
def _in_a_separate_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, header: str, row: Row, count: int = 40, encoding: str = "utf-8") -> None:
    lines = [header] if header else []
    Path(name).write_text("\n".join([*lines, *map(row, range(count)), ""]), encoding=encoding)


def understood(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, dict[str, Any]]:
    """Returns the section `data`, and the JSON of a dry run."""
    assert main(["init", *arguments]) == 0
    data = parse_config(capsys.readouterr().out).data
    assert main(["train", *arguments, "--dry-run", "--json"]) == 0
    return data, json.loads(capsys.readouterr().out)


def roles(document: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["role"] for each in document["columns"]}


def values(document: dict[str, Any], name: str) -> list[Any]:
    place = [each["name"] for each in document["columns"]].index(name)
    return [row[place] for row in document["rows"]]


def stops(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    return " ".join(capsys.readouterr().err.split())


TEXTS: dict[str, tuple[str, Row, str, Sequence[Any]]] = {
    "spaces after commas": (
        "tags", lambda n: f'"{("Action, Drama", "Drama", "Action, War, Drama")[n % 3]}"', "list",
        [["Action", "Drama"], ["Drama"], ["Action", "War", "Drama"]],
    ),
    "lists of Python": (
        "tags", lambda n: ('"[4, 9]"', "[]", '"[9, 7, 4]"')[n % 3], "list",
        [["4", "9"], [], ["9", "7", "4"]],
    ),
    "lists of JSON": (
        "tags", lambda n: '"[""a"", ""b""]"' if n % 2 else "[]", "list", [[], ["a", "b"]]
    ),
    "groups of thousands": (
        "price", lambda n: f'"{12_345 + n:,}"', "number", [12_345.0, 12_346.0]
    ),
    "groups and cents": (
        "price", lambda n: f'"{7_654_321.5 + n:,.2f}"', "number", [7_654_321.5, 7_654_322.5]
    ),
    "currency": ("price", lambda n: f"$ {n}.25", "number", [0.25, 1.25]),
    "percent": ("rate", lambda n: f"{n}.5%", "number", [0.5, 1.5]),
    "one number of many with a fraction": (
        "score", lambda n: "0.75" if n == 25 else f"{n % 4}", "number", [0.0, 1.0]
    ),
    "numbers beyond 64 bits": (
        "user_id", lambda n: f"{10**24 + n % 7}", "user", [str(10**24), str(10**24 + 1)]
    ),
    "leading zeros": ("item_id", lambda n: f"{n % 9:04}", "item", ["0000", "0001"]),
    "offsets of times": (
        "ts", lambda n: f"2024-03-0{n % 9 + 1}T01:00:00+02:00", "time",
        [1_709_247_600_000_000, 1_709_334_000_000_000],
    ),
    "times as floats": (
        "timestamp", lambda n: f"{1_700_000_000.5 + n}", "time", [1_700_000_000_500_000]
    ),
    "twelve hours": (
        "time", lambda n: f"2024-01-{n % 20 + 10} 01:30:00 PM", "time", [1_704_893_400_000_000]
    ),
    "days of one order": (
        "date", lambda n: f"{n % 28 + 1:02}.02.2024", "time", [1_706_745_600_000_000]
    ),
    "row numbers called id": ("id", lambda n: f"{10**12 + n * 7919}", "left out", []),
    "a quantity named after items": ("num_items", lambda n: f"{n % 13}", "number", [0.0, 1.0]),
    "names in lower case": ("movieid", lambda n: f"{n % 6 + 100}", "item", [100, 101]),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_columns_of_text_files_have_the_right_values(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text, role, expected = TEXTS[case]
    write("log.csv", f"who_id,{name},clicked", lambda n: f"{n % 5 + 50},{text(n)},{n % 2}")
    _, found = understood(capsys, "log.csv", "categorical=who_id")
    assert roles(found)[name] == role
    assert values(found, name)[: len(expected)] == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("mark", ["", "sep=;\n"])
def test_exports_of_spreadsheets_are_read(
    encoding: str, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        "log.csv", f"{mark}user_id;item;clicked", lambda n: f"{n % 7};Größe {n % 9};{n % 2}",
        encoding=encoding,
    )  # fmt: skip
    data, found = understood(capsys, "log.csv")
    assert data.delimiter == ";"
    assert values(found, "item")[:2] == ["Größe 0", "Größe 1"]
    if encoding == "latin-1":
        # Another file may have another encoding.
        pytest.importorskip("sparring_torch", reason="trains with torch")
        assert main(["train", "log.csv"]) == 0
        write("new.csv", f"{mark}user_id;item;clicked", lambda n: f"{n};Größe {n};1")
        capsys.readouterr()
        assert "found UTF-8, but another data.encoding" in stops(
            capsys, "predict", "run", "new.csv"
        )


def test_columns_of_outcomes_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def row(number: int) -> str:
        click = number % 3 == 0
        return f"{number % 7},{number % 11},{click:d},{click and number % 2:d},{click * number},{number}"

    write("log.csv", "user_id,video_id,is_click,hidden,play_time_ms,price", row, 300)
    data, found = understood(capsys, "log.csv")
    assert roles(found) == {
        "user_id": "user", "video_id": "item", "is_click": "label", "hidden": "left out",
        "play_time_ms": "left out", "price": "number",
    }  # fmt: skip
    assert found["remarks"][:2] == [
        "hidden: left out, because it is non-zero only where is_click is 1; numeric=hidden uses it",
        "play_time_ms: left out, because it is non-zero only where is_click is 1; "
        "numeric=play_time_ms uses it",
    ]
    data, _ = understood(capsys, "log.csv", "numeric=hidden")
    assert data.numeric == ("hidden", "price")


def test_a_wrong_label_is_a_bad_row(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "log.csv", "user_id,item_id,clicked",
        lambda n: "Total,600,300" if n == 99 else f"{n % 7},{n % 11},{n % 2}", 100,
    )  # fmt: skip
    data, found = understood(capsys, "log.csv")
    assert (data.bad_rows, data.types) == ("skip", {})
    assert found["remarks"] == [
        "clicked: 1 rows have the label 300, not 0 or 1: they are bad rows",
        f"bad rows: 1; the first: {Path('log.csv').absolute()}, row 101, column 'clicked': found '300'",
        "user_id: 1 values such as 'Total' are no numbers: all are read as strings; remove such rows if "
        "they are no examples",
    ]


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("", "u{a},2014-04-07T10:51:0{b}Z,i{b},{e}", "2014-04-07T10:51:00Z', which is no name"),
        ("", "u{a}::i{b}::{e}::97830076{b}", "column_names=[column_1,column_2,column_3,column_4]"),
        ("user_id,item_id,seen,returned", "{a},{b},{c},{e}", "label=seen"),
        ("user_id,item_id,bought_at", "{a},{b},0{c}/0{d}/2024", "date_order=dmy"),
    ],
)  # fmt: skip
def test_doubts_stop_with_a_line_that_works(
    header: str, row: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    write(
        "log.csv", header,
        lambda n: row.format(a=n % 7, b=n % 9, c=n // 2 % 2 + ("_at" in header), d=n % 9 + 1, e=n % 2),
    )  # fmt: skip
    arguments = ["init", "log.csv"]
    said = stops(capsys, *arguments)
    for _ in range(3):  # a decision may lead to a further doubt
        line = said.rpartition("Decide, for example: sparring ")[2]
        assert line != said, said
        if main(arguments := shlex.split(line)) == 0:
            break
        said += capsys.readouterr().err
        said = " ".join(said.split())
    else:
        raise AssertionError(said)
    assert expected in said


def test_usual_forms_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.dat", "user::item::rating", lambda n: f"{n % 7}::{n % 9}::{n % 5 + 1}")
    write("a.data", "user\titem\trating", lambda n: f"{n % 7}\t{n % 9}\t{n % 5 + 1}")
    write(
        "a.inter",
        "user:token\titem:token\trating:float",
        lambda n: f"{n % 7}\t{n % 9}\t{n % 5 + 1}",
    )
    write("a.jsonl", "", lambda n: json.dumps({"user": n % 7, "item": n % 9, "rating": n % 5 + 1}))
    found = [understood(capsys, each)[1] for each in ("a.dat", "a.data", "a.inter", "a.jsonl")]
    assert [each["rows"] for each in found] == [found[0]["rows"]] * 4
    assert roles(found[0]) == {"user": "user", "item": "item", "rating": "label"}
    write("a.xyz", "user,item,rating", lambda n: f"{n % 7},{n % 9},{n % 5 + 1}")
    assert "must all end in .parquet, or in .csv" in stops(capsys, "train", "a.xyz")
    assert understood(capsys, "a.xyz", "form=rows")[1]["rows"] == found[0]["rows"]


def test_lines_of_users_and_items_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.txt", "", lambda n: " ".join(map(str, [n, *range(n, n + 3 + n % 4)])))
    data, found = understood(capsys, "a.txt", "--model", "sequence")
    assert (data.form, data.time, data.split.leave_one_out) == ("lines", "position", "user")
    assert found["rows"][:4] == [[0, 0], [0, 1], [0, 2], [1, 1]]
    write("b.csv", "user,clicked", lambda n: f"{n},{n % 2}")
    assert "or form=lines, if each line contains" in stops(
        capsys, "init", "b.csv", "--model", "sequence", "categorical=user,clicked", "label=none",
        "user=user", "item=clicked",
    )  # fmt: skip


def test_files_of_the_test_are_recognized_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("d").mkdir()
    for name in ("train-1", "train-2", "valid", "test-1", "test-2"):
        write(f"d/{name}.csv", "user,item,clicked", lambda n: f"{n % 7},{n % 9},{n % 2}")
    data, found = understood(capsys, "d")
    assert (data.split.files, data.validation.files) == ("*test*", "valid.csv")
    assert "*test* is the test and valid.csv is the validation" in found["remarks"][0]


def test_nanoseconds_of_parquet_are_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    times = [int(begin.timestamp() * 10**9) + 86_400 * 10**9 * n + 123 for n in range(60)]
    table = pyarrow.table({
        "user": [n % 7 for n in range(60)],
        "item": [n % 9 for n in range(60)],
        "time": pyarrow.array(times, pyarrow.timestamp("ns")),
        "clicked": [n % 2 for n in range(60)],
    })  # fmt: skip
    parquet.write_table(table, "a.parquet")
    assert main(["train", "a.parquet", "--json"]) == 0
    assert parse_config(Path("a.yaml").read_text()).data.split.time == 0.1  # type: ignore[attr-defined]


def test_trying_again_works(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    write("a.csv", "user,item,clicked", lambda n: f"{n % 7},{n % 9},{n % 2}", 200)
    assert "storage 'nowhere' is unknown" in stops(
        capsys, "train", "a.csv", "storage.backend=nowhere"
    )
    assert [*Path().iterdir()] == [Path("a.csv")]
    assert main(["train", "a.csv"]) == 0
    first = Path("a.yaml").read_text()
    assert main(["train", "a.csv", "training.epochs=2"]) == 0
    assert "the folder run-2, because an earlier one exists" in capsys.readouterr().err
    assert main(["train", "a.csv"]) == 0
    assert "used the unchanged configuration a.yaml" in capsys.readouterr().err
    assert Path("a.yaml").read_text() == first
    assert sorted(map(str, Path().glob("run*"))) == ["run", "run-2", "run-3"]
    assert "wrote" not in first
    assert "dictionary" not in first  # all ids are integers
    assert "--dry-run, --model and --yes are for files of examples" in stops(
        capsys, "train", "a.yaml", "--yes"
    )


def test_standard_input_is_not_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Input:
        def isatty(self) -> bool:
            return False

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"standard input was used: {name}")

    monkeypatch.setattr("sys.stdin", Input())
    write("a.csv", "user,item,returned", lambda n: f"{n % 7},{n % 9},{n % 2}")
    assert "sparring train a.csv label=returned" in stops(capsys, "train", "a.csv")
    assert main(["train", "a.csv", "--yes", "--dry-run"]) == 0
    assert "--yes: label=returned, because" in capsys.readouterr().err


def test_a_bad_row_has_no_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sparring_torch", reason="trains with torch")
    write("a.csv", "user,item,price,clicked", lambda n: f"u{n % 7},i{n % 9},{n}.5,{n % 2}", 100)
    assert main(["train", "a.csv"]) == 0
    write("b.csv", "user,item,price", lambda n: f"u{n},i{n},{'oops' if n == 1 else n}.5", 3)
    assert "row 3, column 'price': found 'oops.5'" in (
        said := stops(capsys, "predict", "run", "b.csv")
    )
    assert "or set data.bad_rows: skip" in said
    for output in ("p.csv", "p.parquet"):
        assert main(["predict", "run", "b.csv", "data.bad_rows=skip", "--output", output]) == 0
        assert "1 of 3 rows are bad: their prediction is empty" in capsys.readouterr().err
    cells = [each.split(",") for each in Path("p.csv").read_text().splitlines()]
    assert [each[:2] for each in cells] == [
        ["user", "item"],
        ["u0", "i0"],
        ["u1", "i1"],
        ["u2", "i2"],
    ]
    assert [each[2] == "" for each in cells] == [False, False, True, False]
    table = parquet.read_table("p.parquet")
    assert table.column("prediction").is_null().to_pylist() == [False, True, False]
    write("b.csv", "user,item,price", lambda n: "u1,i1" if n == 1 else f"u{n},i{n},0.5", 3)
    said = stops(capsys, "predict", "run", "b.csv", "data.bad_rows=skip")
    assert "row 3: found 2 fields" in said
    assert "bad_rows" not in said
