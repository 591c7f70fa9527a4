"""Every key of a configuration has an effect on `sparring train`: training, snapshots, ranks."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from sparring.contracts import API_VERSION, hookimpl
from sparring.errors import (
    ConfigError,
    DeadlineError,
    InvalidArgumentError,
    NonFiniteGradientError,
)
from sparring.plugins.distributions import PluginSource
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import list_snapshots
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.application import main
from sparring_tiered import ChangeNote
from sparring_train.hookspecs import TrackerDescriptor
from sparring_train.run.result import SilentProgress
from sparring_train.trackers.contract import TrackerRequest

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from . import own_classes
from .config_runs import RATINGS, Runs, shows

OWN = own_classes.__name__


# -- training -----------------------------------------------------------------------------


@shows("training.epochs", "training.steps")
def test_effects_of_training_epochs_and_steps(runs: Runs) -> None:
    assert runs.ratings("training.epochs=3").end.steps == 12
    assert runs.ratings("training.epochs=3", "training.steps=7").end.steps == 7


@shows("training.watch", "training.patience", "training.min_improvement", "training.keep_best")
def test_effects_of_training_watch_patience_min_improvement_and_keep_best(runs: Runs) -> None:
    validated = ("data.validation_samples=64", "training.epochs=8", "optimizer.sparse.lr=1.0")
    by_auc = runs.clicks(*validated)
    by_loss = runs.clicks(*validated, "training.watch=log_loss")
    assert by_auc.end.best_step != by_loss.end.best_step
    assert by_auc.validated == [3 * each for each in range(1, 9)]
    stopped = runs.clicks(*validated, "training.watch=log_loss", "training.patience=2")
    assert by_loss.end.best_step is not None
    assert stopped.end.steps == by_loss.end.best_step + 6
    last = runs.clicks(*validated, "training.watch=log_loss", "training.keep_best=false")
    assert last.end.metrics != by_loss.end.metrics
    least = "training.min_improvement=10"
    assert runs.clicks(*validated, "training.watch=log_loss", least).end.best_step == 3
    for key in ("watch=auc", "patience=1", "min_improvement=1"):
        with pytest.raises(ConfigError, match="requires validation rows"):
            runs.clicks(f"training.{key}")


@shows("training.loss.name", "training.loss.*", "training.metrics.<name>")
def test_effects_of_training_loss_name_loss_others_and_metrics(runs: Runs) -> None:
    plain = runs.clicks()
    own = {
        times: runs.clicks(
            f"training.loss={{name: {OWN}:ScaledError, times: {times}}}",
            "optimizer.sparse.name=sgd",
        )
        for times in (1.0, 3.0)
    }
    assert own[3.0].losses[0] == pytest.approx(3 * own[1.0].losses[0])
    assert own[1.0].losses[0] != plain.losses[0]
    with pytest.raises(ConfigError, match="defines its own loss"):
        runs.ratings(f"training.loss={OWN}:ScaledError")
    measured = runs.clicks(f"training.metrics=[{{name: {OWN}:Absolute, power: 2}}]").end.metrics
    assert measured.keys() == {"auc", "log_loss", "absolute"}
    assert measured["auc"] == plain.end.metrics["auc"]
    one = runs.clicks(f"training.metrics=[{OWN}:Absolute]").end.metrics
    assert one["absolute"] != measured["absolute"]
    with pytest.raises(
        ConfigError, match=r"training\.loss: is only supported by models that predict labels"
    ):
        runs.visits(f"training.loss={OWN}:ScaledError")


@shows("training.micro_batches", "report.trace_path")
def test_effects_of_training_micro_batches_and_report_trace_path(runs: Runs) -> None:
    runs.ratings("training.micro_batches=3", "report.trace_path=parts.json")
    runs.ratings("report.trace_path=whole.json")
    assert runs.spans("parts.json").count("forward") == 3 * 4
    assert runs.spans("whole.json").count("forward") == 4


@shows("training.pipeline")
def test_effect_of_training_pipeline(runs: Runs) -> None:
    ahead = runs.ratings("training.pipeline=true", "report.trace_path=ahead.json")
    assert ahead.losses == runs.ratings("report.trace_path=whole.json").losses
    assert "prefetch" in runs.spans("ahead.json")
    assert "prefetch" not in runs.spans("whole.json")


@shows("training.evaluation_interval_steps")
def test_effect_of_training_evaluation_interval_steps(runs: Runs) -> None:
    assert runs.ratings("training.evaluation_interval_steps=3").evaluate_model == [3, 4]
    assert runs.ratings().evaluate_model == [4]


@shows("training.non_finite_gradients")
def test_effect_of_training_non_finite_gradients(runs: Runs) -> None:
    far = "optimizer.sparse={name: sgd, lr: 1.0e+38}"
    with pytest.raises(NonFiniteGradientError):
        runs.ratings(far)
    skipping = runs.ratings(far, "training.non_finite_gradients=skip").end
    assert (skipping.steps, skipping.skipped["rows_skipped_non_finite"] > 0) == (4, True)


@shows("training.log_interval_seconds")
def test_effect_of_training_log_interval_seconds(runs: Runs) -> None:
    Path("run.yaml").write_text(RATINGS)
    lines = []
    for seconds in ("1.0e-9", "1000"):
        with redirect_stderr(StringIO()) as told, redirect_stdout(StringIO()):
            assert main(["train", "run.yaml", f"training.log_interval_seconds={seconds}"]) == 0
        lines.append(told.getvalue().count("samples/s"))
    assert lines == [4, 0]


@shows("logging.level", "logging.format")
def test_effects_of_logging_level_and_format(runs: Runs) -> None:
    # For an unbounded tier, a warning is logged for each table.
    Path("run.yaml").write_text(RATINGS)
    stack = ["storage.backend=tiered", "storage.options={tiers: [memory, memory]}"]

    def told(*overrides: str, options: Sequence[str] = ()) -> list[str]:
        often = "training.log_interval_seconds=1.0e-9"
        with redirect_stderr(StringIO()) as said, redirect_stdout(StringIO()):
            assert main([*options, "train", "run.yaml", *stack, often, *overrides]) == 0
        return said.getvalue().splitlines()

    assert sum("has no bound" in line for line in told("logging.level=error")) == 0
    (first, second) = (line for line in told() if "has no bound" in line)
    assert " warning rank 0 step 0 table user: table 'user': tiers.0" in first
    assert " table item: " in second
    more = told("logging={level: info}", "tables.expire={after_steps: 1}")
    assert any(" info rank 0 step 2 table item: " in line for line in more), more
    # --verbose prints each message once.
    assert sum("has no bound" in line for line in told(options=["--verbose"])) == 2
    records = [json.loads(line) for line in told("logging={format: json}")]
    warnings = [each for each in records if each["level"] == "warning"]
    assert [(each["table"], each["rank"], each["step"]) for each in warnings] == [
        ("user", 0, 0),
        ("item", 0, 0),
    ]
    steps = [each for each in records if each["logger"] == "sparring_train.progress"]
    assert [each["step"] for each in steps if "loss" in each["message"]] == [1, 2, 3, 4]
    assert all(each["time"] and each["message"] for each in records)


def test_the_end_of_a_run_is_logged_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RATINGS)
    assert main(["train", "run.yaml", "logging.format=json"]) == 2
    record = json.loads(capfd.readouterr().err.splitlines()[0])
    assert (record["level"], record["step"]) == ("critical", 0)
    assert "ratings.csv" in record["message"]


# -- snapshots ----------------------------------------------------------------------------


def saved(runs: Runs, folder: str, *overrides: str) -> list[int]:
    """The steps of the snapshots that a run of four steps leaves."""
    runs.ratings(f"snapshots.url={folder}", *overrides)
    return sorted(open_snapshot(url).step for url in list_snapshots(folder))


@shows("snapshots.url", "snapshots.every_steps", "snapshots.at_end")
def test_effects_of_snapshots_url_every_steps_and_at_end(runs: Runs) -> None:
    assert saved(runs, "end") == [4]
    assert saved(runs, "nothing", "snapshots.at_end=false") == []
    assert saved(runs, "odd", "snapshots.every_steps=3") == [3, 4]


@shows("snapshots.every_minutes")
def test_effect_of_snapshots_every_minutes(runs: Runs) -> None:
    often = saved(runs, "often", "snapshots.every_minutes=1.0e-9", "snapshots.keep=9")
    assert often == [1, 2, 3, 4]
    assert saved(runs, "rarely", "snapshots.every_minutes=60") == [4]


@shows("snapshots.keep")
def test_effect_of_snapshots_keep(runs: Runs) -> None:
    assert saved(runs, "three", "snapshots.every_steps=1") == [2, 3, 4]
    assert saved(runs, "two", "snapshots.every_steps=1", "snapshots.keep=2") == [3, 4]


@shows("snapshots.history.versions", "snapshots.history.days")
def test_effects_of_history_versions_and_days(runs: Runs) -> None:
    every = ("snapshots.every_steps=1", "snapshots.keep=2", "snapshots.full_every=2")
    assert saved(runs, "no-history", *every) == [1, 2, 3, 4]  # Step 1 and 2 share no file with 3.
    more = (*every, "snapshots.full_every=1")
    assert saved(runs, "versions", *more, "snapshots.history.versions=3") == [2, 3, 4]
    assert saved(runs, "days", *more, "snapshots.history.days=1") == [1, 2, 3, 4]
    assert saved(runs, "moment", *more, "snapshots.history.days=1.0e-9") == [3, 4]
    runs.ratings(
        "snapshots.url=days", "snapshots.resume=true", "training.epochs=2", *more,
        "snapshots.history.versions=5",
    )  # fmt: skip
    kept = [open_snapshot(url).step for url in list_snapshots("days")]
    assert kept == [4, 5, 6, 7, 8]


@shows("snapshots.full_every")
def test_effect_of_snapshots_full_every(runs: Runs) -> None:
    for folder, every, lengths in (("full", 1, [1, 1, 1, 1]), ("delta", 3, [1, 2, 3, 1])):
        more = ("snapshots.every_steps=1", "snapshots.keep=9", f"snapshots.full_every={every}")
        saved(runs, folder, *more)
        assert [len(open_snapshot(url).chain) for url in list_snapshots(folder)] == lengths


@shows("snapshots.deadline_seconds")
def test_effect_of_snapshots_deadline_seconds(runs: Runs) -> None:
    commit = SnapshotWriter.commit

    def slow(writer: SnapshotWriter) -> Any:
        time.sleep(0.2)
        return commit(writer)

    more = ("snapshots.every_steps=1", "snapshots.keep=9")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SnapshotWriter, "commit", slow)
        with pytest.raises(DeadlineError):
            saved(runs, "late", *more, "snapshots.deadline_seconds=0.05")
        assert saved(runs, "in time", *more, "training.steps=2") == [1, 2]


@shows("snapshots.start_from")
def test_effect_of_snapshots_start_from(runs: Runs) -> None:
    assert saved(runs, "first", "training.steps=3") == [3]
    forked = runs.ratings("snapshots.url=second", "snapshots.start_from=first")
    assert (forked.end.resumed_steps, forked.end.steps) == (3, 4)
    assert forked.end.metrics == runs.ratings().end.metrics
    # The run's own snapshots take precedence.
    again = runs.ratings(
        "snapshots.url=second", "snapshots.start_from=first", "snapshots.resume=true"
    )
    assert again.end.resumed_steps == 4
    from_one = runs.ratings("snapshots.start_from=first/step-000000000003")
    assert from_one.end.metrics == forked.end.metrics


@shows("snapshots.resume")
def test_effect_of_snapshots_resume(runs: Runs) -> None:
    assert saved(runs, "again", "training.steps=3") == [3]
    with pytest.raises(ConfigError, match="snapshots of a run"):
        saved(runs, "again")
    resumed = runs.ratings("snapshots.url=again", "snapshots.resume=true")
    assert (resumed.end.resumed_steps, resumed.end.steps) == (3, 4)
    assert resumed.end.metrics == runs.ratings().end.metrics


def test_rows_that_one_rank_finds_are_rejected_by_all(runs: Runs) -> None:
    pytest.importorskip("sparring_rocksdb._native", reason="needs sparring-rocksdb")
    storage = "storage={backend: rocksdb, options: {path: 'rows-{rank}'}}"
    runs.ranks(storage)
    shutil.rmtree("rows-0")
    # Of the first rank, which has no rows.
    with pytest.raises(
        ConfigError, match=r"rank 1 failed: storage: rocksdb \(path rows-1\) already contains "
    ):
        runs.ranks(storage, "seed=4")


# -- versions for servers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("publish={url: served}", "publish.url: requires a folder for snapshots"),
        ("publish.keep=4", "publish.keep has no effect, because nothing is published"),
        ("publish={url: served, quantize: {itm: int8}}", "did you mean item"),
        ("publish={url: served, notify: ['9.9.9.9:1']}", "set publish.client.tls, or set"),
        ("publish={url: served, notify: [host]}", "of host: the address must be host:port"),
        ("publish={url: served, client: {insecur: true}}", "publish.client.insecur: Extra inputs"),
    ],
)
def test_a_publication_that_is_impossible_is_rejected(runs: Runs, given: str, message: str) -> None:
    pytest.importorskip("sparring_serve", reason="publishes")
    folder = [] if message.startswith("publish.url") else ["snapshots.url=unused"]
    with pytest.raises(ConfigError, match=message):
        runs.ratings(*folder, given)


# -- change notes ---------------------------------------------------------------------------


@shows("change_notes.every_steps", "change_notes.url")
def test_effects_of_change_notes_every_steps_and_url(runs: Runs) -> None:
    assert _steps_of_notes(runs, "every", "change_notes.every_steps=3") == [3, 4]
    assert _steps_of_notes(runs, "other", "change_notes.every_steps=2") == [2, 4]


@shows("change_notes.every_seconds")
def test_effect_of_change_notes_every_seconds(runs: Runs) -> None:
    assert _steps_of_notes(runs, "often", "change_notes.every_seconds=1e-9") == [1, 2, 3, 4]
    assert _steps_of_notes(runs, "seldom", "change_notes.every_seconds=3600") == [4]


@shows("change_notes.keep")
def test_effect_of_change_notes_keep(runs: Runs) -> None:
    given = ("change_notes.every_steps=1", "change_notes.keep=2")
    assert _steps_of_notes(runs, "few", *given) == [3, 4]


def _steps_of_notes(runs: Runs, name: str, *given: str) -> list[int]:
    """Trains in a separate RocksDB; returns the steps of the notes in a folder."""
    pytest.importorskip("sparring_rocksdb._native", reason="needs sparring-rocksdb")
    storage = f"storage={{backend: rocksdb, options: {{path: 'rows-{name}'}}}}"
    runs.ratings(storage, f"change_notes.url=notes-{name}", *given)
    found = sorted(Path(f"notes-{name}", "item").glob("*.note"))
    return [ChangeNote.from_bytes(each.read_bytes(), str(each)).step for each in found]


def test_change_notes_of_rows_that_no_server_reads_are_rejected(runs: Runs) -> None:
    with pytest.raises(ConfigError, match="rows of table 'user' are in 'memory'"):
        runs.ratings("change_notes.every_steps=1")


def test_change_notes_that_the_storage_does_not_support_are_rejected(runs: Runs) -> None:
    pytest.importorskip("sparring_rocksdb._native", reason="needs sparring-rocksdb")
    with pytest.raises(InvalidArgumentError, match="'rocksdb' cannot store change notes"):
        runs.ratings(
            "storage={backend: rocksdb, options: {path: rows-without}}",
            "change_notes.every_steps=1",
        )


def test_keys_of_change_notes_that_are_never_published_are_rejected(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"change_notes\.keep has no effect"):
        runs.ratings("change_notes.keep=2")


# -- ranks --------------------------------------------------------------------------------


@shows("collective.backend", "rendezvous.backend", "rendezvous.options")
def test_effects_of_collective_backend_and_of_rendezvous(runs: Runs) -> None:
    first, other = runs.ranks()
    assert (first.end.rank, other.end.rank) == (0, 1)
    assert first.rows == other.rows == runs.ratings().rows
    place = "rendezvous={backend: threads, options: {rank: 1, world_size: 2}}"
    with pytest.raises(InvalidArgumentError, match="'local' does not connect processes"):
        runs.ratings(place, "collective.backend=local")


@shows("collective.options")
def test_effect_of_collective_options(runs: Runs) -> None:
    runs.ranks("collective.options={group: another}")
    assert runs.parts.groups.keys() == {"another"}


@shows("exchange.chunk_rows", "exchange.row_wire_dtype", "exchange.gradient_wire_dtype")
def test_effects_of_chunk_rows_and_wire_dtypes(runs: Runs) -> None:
    def sent(name: str, *overrides: str) -> dict[str, Any]:
        runs.ranks(f"metrics.path={name}.jsonl", "exchange.chunk_rows=8", *overrides)
        counted: dict[str, Any] = runs.lines(f"{name}.jsonl")[-1]["exchange"]
        return {**counted["wire_bytes_sent"], "messages": counted["num_messages_sent"]}

    plain = sent("plain")
    assert sent("small", "exchange.chunk_rows=1")["messages"] > 1.5 * plain["messages"]
    for kind, other in (("row", "gradient"), ("gradient", "row")):
        narrow = sent(f"narrow-{kind}", f"exchange.{kind}_wire_dtype=bfloat16")
        assert narrow[f"{kind}s"] < plain[f"{kind}s"]
        assert narrow[f"{other}s"] == plain[f"{other}s"]


@shows("plan")
def test_effect_of_plan(runs: Runs) -> None:
    # For files, see `test_plan`.
    assert not runs.ranks()[0].messages
    assert "plan auto: " in runs.ranks("plan=auto")[0].messages[0]


@shows("exchange.chunks_in_flight")
def test_effect_of_exchange_chunks_in_flight(runs: Runs) -> None:
    def most(chunks: int) -> int:
        runs.ranks("exchange.chunk_rows=1", f"exchange.chunks_in_flight={chunks}")
        return max(each.most_awaited for each in runs.parts.joined)

    assert most(1) < most(8)


@shows("exchange.two_levels")
def test_effect_of_exchange_two_levels(runs: Runs) -> None:
    # Core tests the messages. These ranks do not know which of them share a host.
    runs.ranks("exchange.two_levels=false")
    with pytest.raises(InvalidArgumentError, match=r"exchange\.two_levels is true"):
        runs.ranks("exchange.two_levels=true")


# -- metrics and report -------------------------------------------------------------------


@shows("metrics.path", "metrics.every_seconds")
def test_effects_of_metrics_path_and_every_seconds(runs: Runs) -> None:
    runs.ratings("metrics.path=often.jsonl", "metrics.every_seconds=1.0e-9")
    runs.ratings("metrics.path=rarely.jsonl")
    assert len(runs.lines("rarely.jsonl")) == 2  # the first and the last
    assert len(runs.lines("often.jsonl")) > 2
    assert runs.lines("rarely.jsonl")[-1]["steps"]["steps"] == 4


@shows("metrics.format")
def test_effect_of_metrics_format(runs: Runs) -> None:
    pytest.importorskip("prometheus_client", reason="metrics.format=prometheus needs it")
    runs.ratings("metrics.path=run.prom", "metrics.format=prometheus")
    assert "\nsparring_steps_total" in Path("run.prom").read_text()


@shows("report.path")
def test_effect_of_report_path(runs: Runs) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    assert runs.ratings("report.path=report.html").end.extra["report_path"] == "report.html"
    assert "embedding_l2" in Path("report.html").read_text()


@shows("report.columns")
def test_effect_of_report_columns(runs: Runs) -> None:
    pytest.importorskip("matplotlib", reason="the report draws with matplotlib")
    runs.ratings("report={path: report.html, columns: {user: 'user: name of users'}}")
    assert "user: name of users" in Path("report.html").read_text()


# -- trackers -----------------------------------------------------------------------------


class _Trial(SilentProgress):
    """Registers a tracker that keeps the requests with which it was opened."""

    def __init__(self) -> None:
        self.requests: list[TrackerRequest] = []

    @hookimpl(optionalhook=True)
    def sparring_register_trackers(self) -> list[TrackerDescriptor]:
        return [TrackerDescriptor(name="trial", api_version=API_VERSION, open=self.open)]

    def open(self, request: TrackerRequest) -> _Trial:
        self.requests.append(request)
        return self

    def log_metrics(self, step: int, metrics: object) -> None: ...

    def log_file(self, path: object) -> None: ...

    def close(self, *, succeeded: bool) -> None: ...


@shows(*(f"training.trackers.<name>.{key}" for key in ("kind", "url", "project", "name")))
def test_effects_of_trackers_kind_url_project_and_name(runs: Runs) -> None:
    trial = _Trial()
    runs.manager.load(PluginSource("trial", "sparring-trial", "1", lambda: trial))
    runs.ratings("training.trackers=[trial, {kind: trial, url: a/b, project: c, name: d}]")
    alone, full = trial.requests
    assert (alone.url, alone.project, alone.name) == (None, "sparring", None)
    assert (full.url, full.project, full.name) == ("a/b", "c", "d")
