"""The report is complete, self-contained, escaped, and equal to the recorded values."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from sparring.errors import DataError, InvalidArgumentError, PluginError
from sparring_train.report.page import write_report
from sparring_train.report.recorder import RecordingProgress, RunRecorder
from sparring_train.report.run_data import (
    Baseline,
    Calibration,
    Host,
    RunData,
    Slice,
    SnapshotOfRun,
    read_report,
)
from sparring_train.run.result import SilentProgress

pytest.importorskip("matplotlib", reason="a report needs matplotlib: sparring[report]")

RESULT: dict[str, Any] = {
    "metrics": {"auc": 0.8123, "log_loss": 0.4567},
    "rows": {"user": 1234, "item": 5},
    "steps": 30,
    "seconds": 1.5,
    "best": {"auc": 0.8321},
    "calibration": [
        Calibration(num_samples=60, predicted=0.2, observed=0.3),
        Calibration(num_samples=40, predicted=0.7, observed=0.8),
    ],
}


def recorded(num_steps: int = 30, num_tables: int = 2) -> RunRecorder:
    recorder = RunRecorder()
    for step in range(num_steps + 1):
        parts = {"lookup": 0.01, "dense": 0.03, "evaluation": 0.01, "total": 0.05}
        for name, seconds in parts.items():
            recorder.record(step, f"seconds/{name}", step * seconds)
        recorder.record(step, "samples", step * 100)
        recorder.record(step, "memory", (100 + step) << 20)
    for step in range(1, num_steps + 1):
        recorder.record(step, "loss", 1 / step)
        for table in range(num_tables):
            recorder.record(step, f"rows/table_{table}", step * (table + 1))
        if step % 10 == 0:
            recorder.record(step, "auc", 0.5 + step / 100)
            recorder.record(step, "log_loss", 0.7 - step / 100)
    recorder.observe_ids("user", np.array([1, 1, 1, 2, 2, 3]))
    return recorder


def data_of(recorder: RunRecorder, **facts: Any) -> RunData:
    return RunData(**({"steps": 0, "seconds": 0.0} | facts), series=dict(recorder.series))


class Page(HTMLParser):
    """Parses a page like a browser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.kinds: list[str | None] = []
        self.open: list[str] = []
        self.urls: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)
        if tag == "script":
            self.kinds.append(dict(attributes).get("type"))
        self.urls += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["script"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def written(path: Path, recorder: RunRecorder, facts: Any = None, **options: Any) -> Page:
    given = data_of(recorder, **(RESULT if facts is None else facts))
    write_report(path, given, recorder.id_counts(), **options)
    page = Page(path.read_text("utf-8"))
    assert page.open == []
    return page


@pytest.mark.usefixtures("without_figures")
def test_the_report_shows_the_result_next_to_the_best(tmp_path: Path) -> None:
    facts = RESULT | {
        "started": "2026-05-03T11:00:59+00:00",
        "world_size": 3,
        "threads": 2,
        "peak_memory_bytes": 3 << 29,
        "host": Host(name="box-7", system="Linux", processor="a fast one", usable_cores=1),
        "versions": {"sparring-hkv": "9.8.7"},
        "snapshot": SnapshotOfRun(url="s3://runs/step-30", step=30, manifest_hash="abc123"),
        "backends": {"storage": "hkv over redis"},
        "slices": [
            Slice(
                feature="clicked",
                name="rare ids",
                met="1 to 9 times",
                num_samples=4321,
                metrics={"auc": 0.6789},
                one_in=4,
            )
        ],
    }
    path = tmp_path / "deep" / "report.html"
    page = written(path, recorded(), facts, config_text="seed: 7", title="My run")
    for words in (
        "My run", "0.8123", "0.8321", "-0.0198", "0.4567", "unknown", "1,234", "1,239", "seed: 7",
        "30 steps in 1.5 seconds, from 2026-05-03 11:00:59 UTC on box-7.", "a fast one, 1 core",
        "1.5 GiB, maximum over ranks", "sparring-hkv", "9.8.7", "s3://runs/step-30, after step 30",
        "abc123", "hkv over redis", "rare ids", "1 to 9 times", "4,321", "0.6789",
        "clicked has very many ids: one in 4 was counted",
    ):  # fmt: skip
        assert words in page.text
    assert list((tmp_path / "deep").iterdir()) == [path]
    assert read_report(path) == data_of(recorded(), **facts)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a figure of each kind."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    written(path, recorded())
    return path


def test_the_report_loads_nothing_and_runs_nothing(whole: Path) -> None:
    text = whole.read_text("utf-8")
    page = Page(text)
    assert page.urls == []
    assert page.kinds == ["application/json"]  # which no browser runs
    assert "link" not in page.tags
    assert "@import" not in text


def test_every_figure_is_drawn_and_its_text_can_be_searched(whole: Path) -> None:
    text = whole.read_text("utf-8")
    drawings = [ElementTree.fromstring(each) for each in re.findall("<svg.*?</svg>", text, re.S)]
    drawn = {each.attrib["aria-label"]: each for each in drawings}
    words = {
        "Loss over steps": "mean loss per sample (nats)",
        "AUC over steps": "0.8000",
        "Rows per table over steps": "all 2 tables",
        "Skew of id frequencies": "user: 3 ids",
        "Calibration": "observed rate",
        "Time of a step": "lookup of rows",
        "Speed": "samples per second",
        "Memory": "resident memory (MiB)",
    }
    assert list(drawn) == list(words)
    for title, drawing in drawn.items():
        assert words[title] in [
            each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")
        ]
        assert title in Page(text).text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_time_of_the_parts_is_a_table(whole: Path) -> None:
    text = Page(whole.read_text("utf-8")).text
    for line in (
        "dense model 0.90 60.0% 30.00",
        "lookup of rows 0.30 20.0% 10.00",
        "evaluation 0.30 20.0% 10.00",
        "all parts 1.50  50.00",
    ):
        assert " ".join(line.split()) in " ".join(text.split())
    # 30 steps of 100 samples, in 1.5 seconds without 0.3 seconds of evaluation.
    assert "2,500 samples per second" in " ".join(text.split())
    assert "The mean prediction is 0.4000, which is 0.800 times the observed rate of 0.5000" in text


def test_a_run_of_one_step_has_no_empty_figure(tmp_path: Path) -> None:
    facts = RESULT | {"steps": 1, "calibration": []}
    page = written(tmp_path / "report.html", recorded(1), facts)
    assert "1 step in 1.5 seconds" in page.text
    text = (tmp_path / "report.html").read_text()
    assert re.findall('aria-label="([^"]+)"', text) == [
        "Skew of id frequencies", "Time of a step", "Memory",
    ]  # fmt: skip


def test_a_baseline_is_drawn_next_to_a_metric(tmp_path: Path) -> None:
    baselines = [Baseline(name="the mean of each $item", metrics={"auc": 0.6543})]
    recorder = RunRecorder()
    for step in (10, 20, 30):
        recorder.record(step, "auc", 0.5 + step / 100)
    facts = {**RESULT, "best": {}, "baselines": baselines, "calibration": []}
    written(tmp_path / "report.html", recorder, facts)
    assert (
        "predicting the mean of each $item 0.6543</text>" in (tmp_path / "report.html").read_text()
    )


def test_names_and_text_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script><!--&"
    recorder = RunRecorder()
    recorder.record(1, "loss", 1.0)
    recorder.record(1, f"rows/{evil}$_x$", 1)
    recorder.observe_ids("_$" + evil, np.array([1]))
    facts = {
        "metrics": {evil: 1.0},
        "rows": {evil: 3},
        "versions": {evil: evil},
        "config": {evil: 1},
    }
    path = tmp_path / "report.html"
    page = written(path, recorder, facts, config_text=evil, title=evil)
    assert page.kinds == ["application/json"]
    assert page.text.count(evil) >= 5
    assert read_report(path) == data_of(recorder, **facts)


def test_a_run_that_recorded_nothing_still_has_a_report(tmp_path: Path) -> None:
    page = written(tmp_path / "report.html", RunRecorder(), {})
    assert "svg" not in page.tags
    assert "Time" not in page.text


def test_numbers_that_are_not_finite_are_drawn_around(tmp_path: Path) -> None:
    recorder = RunRecorder()
    for step, loss in enumerate([1.0, float("nan"), float("inf"), 0.5, 0.4], 1):
        recorder.record(step, "loss", loss)
        recorder.record(step, "auc", float("nan"))
    recorder.record(1, "rows/empty", 0)
    path, nan = tmp_path / "report.html", float("nan")
    facts = {"metrics": {"auc": nan}, "rows": {"empty": 0}, "best": {"auc": nan}}
    assert "nan" in written(path, recorder, facts).text
    found = read_report(path)
    assert np.isnan(found.metrics["auc"])
    assert np.isnan(found.series["loss"].values).tolist() == [False, True, True, False, False]


@pytest.mark.usefixtures("without_figures")
def test_many_tables_are_collapsed(tmp_path: Path) -> None:
    rows = {f"table_{number}": number for number in range(40)}
    page = written(tmp_path / "report.html", recorded(num_tables=40), {"rows": rows})
    assert "details" in page.tags
    assert "All 40 tables" in page.text


def test_a_report_is_replaced_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("an earlier report")

    def fail(*arguments: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(DataError, match=r"report\.html failed: no space"):
            write_report(path, data_of(RunRecorder(), **RESULT))
    assert path.read_text() == "an earlier report"
    assert list(tmp_path.iterdir()) == [path]
    assert "0.8123" in written(path, RunRecorder()).text


def test_the_same_run_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    written(tmp_path / "again.html", recorded())
    assert (tmp_path / "again.html").read_bytes() == whole.read_bytes()


def test_without_matplotlib_the_install_command_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PluginError, match=r"pip install 'sparring\[report\]'"):
        write_report(tmp_path / "report.html", data_of(recorded(), **RESULT))
    assert list(tmp_path.iterdir()) == []


def test_recording_imports_no_matplotlib() -> None:
    code = "import sys, sparring_train.report.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_long_series_are_thinned_and_keep_their_ends() -> None:
    recorder = RunRecorder(max_points=100)
    for step in range(12_345):
        recorder.record(step, "loss", step * 2.0)
    series = recorder.series["loss"]
    assert 50 <= len(series.steps) <= 101
    assert (series.steps[0], series.steps[-1]) == (0, 12_344)
    assert series.values == [step * 2.0 for step in series.steps]
    gaps = np.diff(series.steps[:-1])
    assert gaps.min() == gaps.max()


def test_steps_out_of_order_are_rejected() -> None:
    recorder = RunRecorder()
    recorder.record(5, "loss", 1)
    with pytest.raises(InvalidArgumentError, match="step 4 after step 5"):
        recorder.record(4, "loss", 1)
    assert recorder.series["loss"].steps == [5]


def test_ids_are_counted_up_to_a_limit() -> None:
    recorder = RunRecorder(max_ids=5)
    recorder.observe_ids("user", np.array([[7, 7], [9, 7]]))
    recorder.observe_ids("user", np.array([8, 8, 8, 8]))
    recorder.observe_ids("user", np.array([8]))
    recorder.observe_ids("item", np.array([], np.int64))
    counts = recorder.id_counts()
    assert counts["user"].tolist() == [3, 1, 1]
    assert counts.get("item", np.array([])).tolist() == []


def test_observed_ids_are_copies() -> None:
    recorder, buffer = RunRecorder(), np.array([1, 2])
    recorder.observe_ids("user", buffer)
    buffer[:] = 1
    assert recorder.id_counts()["user"].tolist() == [1, 1]


def test_progress_is_recorded_and_passed_on() -> None:
    told: list[tuple[object, ...]] = []

    class Listener(SilentProgress):
        def on_step(self, step: int, loss: float, samples: int) -> None:
            told.append((step, loss, samples))

    recorder = RunRecorder()
    progress = RecordingProgress(Listener(), recorder)
    progress.on_start(1)
    progress.on_step(1, 0.5, 64)
    progress.on_metrics(1, {"auc": 0.75})
    progress.on_message("done")
    progress.on_end()
    assert told == [(1, 0.5, 64)]
    assert list(recorder.series) == ["loss", "auc"]
