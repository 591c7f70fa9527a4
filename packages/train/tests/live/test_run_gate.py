"""The gate of a run: it withholds versions, writes gate.json, and obeys the operator."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring import StepContainer, TableConfig
from sparring.collective.local import LocalGroup
from sparring_train.config.sections.gate import GateConfig
from sparring_train.data.stream.quarantine import Quarantine
from sparring_train.live.run_gate import RunGate
from sparring_train.run.ranks import Ranks

from .test_gate import Model

sparring_packed = pytest.importorskip("sparring_packed", reason="pip install sparring-packed")
gate_file = pytest.importorskip(
    "sparring_serve.publishing.gate_file", reason="pip install sparring-serve"
)
publisher = pytest.importorskip(
    "sparring_serve.publishing.publisher", reason="pip install sparring-serve"
)


class Run:
    """A gate of a run whose step s has the version step-s."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.url, self.told = str(folder / "served"), []
        self.notified = 0
        self.publisher: Any = SimpleNamespace(
            withhold=lambda: False, keep_steps=(), notify=self.notify
        )
        config: Any = SimpleNamespace(
            publish=SimpleNamespace(url=self.url, gate=GateConfig(**options)),
            metrics=SimpleNamespace(window_seconds=10.0),
            snapshots=SimpleNamespace(url=str(folder / "run")),
        )
        self.gate = RunGate(config, Ranks(LocalGroup(1).join(0)), self.publisher, self.told.append)
        self.model = Model(seed=2)

    def notify(self) -> None:
        self.notified += 1

    def publish(self, step: int) -> None:
        with StepContainer() as container:
            container.declare(TableConfig("item", dim=2))
            container.counters.steps = step
            container.save(f"{self.url}-run/step-{step:03d}")
        publisher.publish_newest(
            f"{self.url}-run", self.url, publisher.PublisherOptions({}, keep=9)
        )

    def windows(self, count: int, kind: str = "clean") -> None:
        for each in self.model.windows(count, kind):
            self.gate.on_window(each)

    def file(self) -> Any:
        return sparring_packed.read_gate(self.url)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_servers_return_to_the_last_good_version_until_the_gate_opens(run: Run) -> None:
    for step in (270, 288, 299):
        run.publish(step)
    run.windows(60)
    assert run.told == []
    assert not run.publisher.withhold()
    assert 295 in run.publisher.keep_steps
    run.windows(2, "inverted")
    # Window 60, which ends at step 305, is bad, and the one before it is not trusted.
    closed = run.file()
    assert (closed.is_closed, closed.pin, closed.pinned_by) == (True, "step-288", "gate")
    assert "normalized entropy" in closed.reason
    assert run.publisher.withhold()
    assert "servers return to step-288, and versions are withheld" in run.told[0]
    with pytest.raises(publisher.GateClosedError):
        run.publish(310)
    run.windows(3)
    assert not run.publisher.withhold()
    assert (run.file().is_closed, run.file().pin) == (False, "step-288")
    run.publish(320)
    assert run.file().pin == ""
    assert run.gate.metrics()["gate"]["num_closings"] == 1


def test_the_operator_opens_the_gate(run: Run) -> None:
    run.windows(60)
    run.windows(1, "inverted")
    assert "there is no earlier version to return to" in run.told[0]
    gate_file.unpin(run.url)
    run.windows(30, "inverted")
    assert "opened by sparring publish --unpin" in run.told[1]
    assert not run.publisher.withhold()


def test_a_change_that_cannot_be_written_is_written_later(run: Run) -> None:
    run.windows(60)
    Path(run.url).write_text("not a folder")
    run.windows(3, "inverted")
    [told] = run.told
    assert "writing the state of the gate failed" in told
    assert run.publisher.withhold()
    Path(run.url).unlink()
    run.windows(1, "inverted")
    assert run.publisher.withhold()
    assert run.file().is_closed
    assert "the gate closes" in run.told[1]


def test_a_resumed_gate_is_still_closed(run: Run, tmp_path: Path) -> None:
    run.windows(60)
    run.windows(1, "inverted")
    other = Run(tmp_path)
    state = run.gate.states()["gate"]
    other.gate.restore({"gate": type(state)(json.loads(json.dumps(dict(state.values))))})
    assert other.publisher.withhold()
    other.windows(3)
    assert not other.publisher.withhold()
    assert not other.file().is_closed


def test_a_run_that_resumes_before_the_closing_opens_the_gate_after_good_windows(
    run: Run, tmp_path: Path
) -> None:
    run.publish(270)
    run.windows(60)
    state = run.gate.states()["gate"]
    state = type(state)(json.loads(json.dumps(dict(state.values))))
    run.windows(1, "inverted")
    assert run.notified == 1
    other = Run(tmp_path)
    other.model = run.model
    other.gate.restore({"gate": state})
    assert other.publisher.withhold()
    other.windows(2)
    assert other.publisher.withhold()
    other.windows(1)
    assert not other.publisher.withhold()
    assert not other.file().is_closed


def test_after_a_return_each_bad_window_is_a_closing_until_the_gate_opens(run: Run) -> None:
    for step in (270, 288):
        run.publish(step)
    run.gate._may_return = True
    run.windows(60)
    run.windows(1, "inverted")
    assert run.gate.closing is not None
    good = run.gate.closing.good_step
    assert run.gate.kept_steps == (good,)
    run.windows(1, "inverted")  # not judged, because the run is going to return
    run.gate.returned(Quarantine(good or 0, 315, "", 0.0, 0.0, ()))
    assert run.publisher.withhold()
    for expected in (316, 316):
        run.windows(1, "inverted")
        assert run.gate.closing is not None
        assert run.gate.closing.good_step == expected
        assert run.file().pin == "step-288"
        run.gate.returned(Quarantine(316, 315, "", 0.0, 0.0, ()))
    run.windows(2)
    assert run.publisher.withhold()
    run.windows(1)
    assert not run.publisher.withhold()
    found = run.gate.metrics()["gate"]
    assert (found["num_closings"], found["num_returns"]) == (1, 3)


def test_a_run_returns_a_limited_number_of_times_while_the_gate_is_closed(tmp_path: Path) -> None:
    run = Run(tmp_path, on_close="return", max_returns=2)
    run.windows(60)

    def bad_windows_return() -> bool:
        run.windows(2, "inverted")
        if run.gate.closing is None:
            return False
        run.gate.returned(Quarantine(run.gate.closing.good_step or 0, 315, "", 0.0, 0.0, ()))
        return True

    assert bad_windows_return()
    # The number of returns is part of a snapshot.
    state = run.gate.states()["gate"]
    run.gate.restore({"gate": type(state)(json.loads(json.dumps(dict(state.values))))})
    assert bad_windows_return()
    assert not any("max_returns" in each for each in run.told)
    assert not bad_windows_return()
    assert run.publisher.withhold()
    [told] = [each for each in run.told if "max_returns" in each]
    assert "the run has returned 2 times" in told
    assert f"sparring publish --output {run.url} --unpin" in told
    # A gate that opens allows returns again.
    run.windows(3)
    assert not run.publisher.withhold()
    run.windows(30)
    assert bad_windows_return()
