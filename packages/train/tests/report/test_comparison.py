"""`sparring report RUN...` shows differences, and rejects files that are not runs in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparring import State, StepContainer
from sparring_cli.application import main
from sparring_train.report.comparison import compare, label_run
from sparring_train.report.page import write_report
from sparring_train.report.run_data import (
    REPORT,
    Host,
    Points,
    RunData,
    Slice,
    SnapshotOfRun,
    read_report,
)

pytest.importorskip("matplotlib", reason="a report needs matplotlib: sparring[report]")

HOST = Host(name="box-7", system="Linux", processor="a fast one", usable_cores=8)


def a_run(rate: float = 0.1, auc: float = 0.75, **facts: Any) -> RunData:
    series = {
        "loss": Points(steps=[1, 2, 3], values=[0.7, 0.6, 0.5]),
        "auc": Points(steps=[2, 3], values=[0.6, auc]),
        "rows/user": Points(steps=[1, 3], values=[5, 10]),
        "seconds/dense": Points(steps=[0, 3], values=[0, 15 * (auc - 0.65)]),
        "seconds/total": Points(steps=[0, 3], values=[0, 3.0]),
        "samples": Points(steps=[0, 3], values=[0, 300]),
        "memory": Points(steps=[0, 3], values=[1 << 30, 1 << 31]),
    }
    config = {
        "optimizer": {"sparse": {"name": "adagrad", "lr": rate}},
        "report": {"path": f"{rate}.html"},
        "data": {"kind": "table"},
    }
    given: dict[str, Any] = {
        "steps": 3,
        "seconds": 1.5,
        "metrics": {"auc": auc},
        "rows": {"user": 10},
        "peak_memory_bytes": 1 << 30,
        "host": HOST,
        "slices": [a_slice("user", "rare ids", 2.0)],
        "versions": {"torch": "2.13.0", "python": "3.11"},
    }
    return RunData(**(given | facts), series=series, config=config)


def a_slice(feature: str, name: str, value: float) -> Slice:
    return Slice(feature=feature, name=name, num_samples=9, metrics={"rmse": value}, one_in=4)


def other_run() -> RunData:
    slices = [a_slice("user", "rare ids", 2.5), a_slice("item", "new ids", 3.0)]
    rows = {"user": 12, "item": 3}
    facts = {"rows": rows, "peak_memory_bytes": 3 << 29, "seconds": 1.0, "slices": slices}
    return a_run(0.00001, 0.8, **facts, versions={"torch": "2.14.0", "python": "3.11"})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("pages")
    write_report(folder / "a.html", a_run())
    write_report(folder / "b.html", other_run())
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def files(pages: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name, content in pages.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


Printed = pytest.CaptureFixture[str]


def test_two_runs_are_compared_on_the_terminal(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html", "b.html"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for wanted in (
        "A: a.html",
        "B: b.html",
        "test AUC 0.7500 0.8000 +0.0500",
        "RMSE, user: rare ids 2.0000 2.5000 +0.5000",
        "RMSE, item: new ids – 3.0000",
        "steps 3 3 0",
        "steps per second 2.0000 3.0000 +1.0000 (+50.0%)",
        "rows of all tables 10 15 +5 (+50.0%)",
        "peak memory 1.0 GiB 1.5 GiB +512.0 MiB (+50.0%)",
        "item – 3",
        "user 10 12 +2 (+20.0%)",
        "optimizer.sparse.lr 0.1 1e-05",
        "torch 2.13.0 2.14.0",
    ):
        assert wanted.split() in lines
    words = {word for line in lines for word in line}
    for same in ("data.kind", "report.path", "python", "host"):
        assert same not in words


def test_the_comparison_is_data_too(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html", "b.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == ["a.html", "b.html"]
    assert found["results"]["test AUC"] == {
        "values": [0.75, 0.8],
        "difference": pytest.approx(0.05),
    }
    assert found["configuration"] == {"optimizer.sparse.lr": {"values": [0.1, 1e-05]}}
    assert found["environment"] == {"torch": {"values": ["2.13.0", "2.14.0"]}}
    assert found["rows"]["item"] == {"values": [None, 3]}
    assert found["time"]["dense model, ms per step"]["values"] == pytest.approx([500, 750])


def test_three_runs_are_compared_without_differences(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html", "b.html", "a.html"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for wanted in (
        "C: a.html",
        "test AUC 0.7500 0.8000 0.7500",
        "optimizer.sparse.lr 0.1 1e-05 0.1",
        "item – 3 –",
    ):
        assert wanted.split() in lines
    assert main(["report", "a.html", "b.html", "a.html", "-o", "c.html"]) == 0
    text = (files / "c.html").read_text()
    assert "A is a.html, B is b.html, C is a.html." in text
    assert text.count(">C: a.html</text>") == text.count("<svg") == 5


def test_one_run_is_shown_and_its_page_written_again(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["test", "AUC", "0.7500"] in lines
    assert ["user", "10"] in lines
    assert "no difference" not in out
    assert main(["report", "a.html", "-o", "again.html"]) == 0
    assert read_report(files / "again.html") == read_report(files / "a.html")
    assert "name: adagrad" in (files / "again.html").read_text()


def test_many_runs_have_distinct_labels() -> None:
    assert [label_run(number) for number in (0, 25, 26, 53)] == ["A", "Z", "A2", "B3"]


def test_the_same_run_differs_in_nothing(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html", "a.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["configuration"] == found["environment"] == {}
    assert all(each.get("difference") == 0 for each in found["results"].values())
    assert main(["report", "a.html", "a.html"]) == 0
    assert "configuration: no difference" in capsys.readouterr().out


def test_a_page_has_the_curves_of_both_in_the_same_axes(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html", "b.html", "-o", "deep/c.html"]) == 0
    assert capsys.readouterr().err == "deep/c.html: a.html, b.html\n"
    text = (files / "deep/c.html").read_text()
    titles = ("Loss over steps", "AUC over steps", "Rows over steps", "Speed", "Memory")
    for words in (*titles, "optimizer.sparse.lr"):
        assert words in text
    assert text.count("<svg") == len(titles)
    assert "<script" not in text


def test_names_of_runs_are_escaped(files: Path) -> None:
    (files / "<b>.html").write_text((files / "a.html").read_text())
    assert main(["report", "<b>.html", "a.html", "-o", "c.html"]) == 0
    assert "&lt;b&gt;.html" in (files / "c.html").read_text()


def _without_data(text: str) -> str:
    return re.sub(r"<script.*</script>", "", text)


BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "a report of an earlier release": (_without_data, "found no data of a run"),
    "any other file": (lambda _: "hello", "found no data of a run"),
    "a report that was cut off": (lambda text: text[: text.index("adagrad")], "ends early"),
    "a report with other text in it": (lambda text: text.replace('{"format":1', "{;"), "damaged"),
    "a value of another type": (
        lambda text: text.replace('"seconds":1.5', '"seconds":"long"'),
        "seconds: Input should be a valid number",
    ),
    "a curve of two lengths": (
        lambda text: text.replace('"steps":[1,2,3]', '"steps":[1,2]'),
        "2 steps have 3 values",
    ),
    "a report of a later release": (
        lambda text: text.replace('{"format":1', '{"format":9'),
        "format 9, expected at most 1",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_not_a_run_is_rejected_in_one_line(
    files: Path, capsys: Printed, what: str
) -> None:
    change, message = BROKEN[what]
    text = (files / "a.html").read_text()
    (files / "x.html").write_text(change(text))
    assert (files / "x.html").read_text() != text
    assert main(["report", "a.html", "x.html", "-o", "c.html"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: x.html: ")
    assert message in told
    assert told.count("\n") == 1
    assert not (files / "c.html").exists()


def test_a_missing_file_is_rejected(files: Path, capsys: Printed) -> None:
    assert main(["report", "a.html", "none.html"]) == 2
    assert "reading the report none.html failed: No such file" in capsys.readouterr().err


def test_keys_of_later_releases_are_skipped(files: Path, capsys: Printed) -> None:
    text = (files / "a.html").read_text()
    (files / "x.html").write_text(text.replace('{"format":1', '{"news":[1],"format":1'))
    assert main(["report", "a.html", "x.html"]) == 0


def test_snapshots_of_runs_with_a_report_are_compared(files: Path, capsys: Printed) -> None:
    with StepContainer() as container:
        states = {REPORT: State(a_run().as_json())}
        container.save("runs/one", states=states)
        container.save("bare/one")
    assert main(["report", "runs", "b.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["results"]["test AUC"]["values"][0] == 0.75
    assert "runs/one, after step 0" in found["environment"]["snapshot"]["values"][0]
    assert main(["report", "a.html", "bare/one"]) == 2
    assert "contains no report; set report.path" in capsys.readouterr().err


def test_a_run_of_another_kind_has_no_difference_if_it_has_no_number() -> None:
    nan = float("nan")
    other = a_run(metrics={"rmse": nan}, snapshot=SnapshotOfRun(url="u", step=1, manifest_hash="h"))
    sections = compare(("a", "b"), (a_run(), other)).sections
    cells = {line.name: line.cells() for line in sections["results"]}
    assert cells["test AUC"] == ("0.7500", "–", "")
    assert cells["test RMSE"] == ("–", "nan", "")
    same = compare(("a", "b"), (other, other)).sections["results"][0]
    assert same.cells() == ("nan", "nan", "")
