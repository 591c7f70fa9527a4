"""A run on a stream returns to a good snapshot after inverted labels, and quarantines their events."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

sparring_packed = pytest.importorskip("sparring_packed", reason="pip install sparring-packed")
pytest.importorskip("sparring_serve", reason="pip install sparring-serve")
pytest.importorskip("torch", reason='pip install "sparring[torch]"')

from sparring import open_snapshot
from sparring_cli.application import main
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.data.stream.quarantine import is_dropped, read_quarantines
from sparring_train.loop import returns
from sparring_train.run.replay import list_differences
from sparring_train.run.snapshots import RunSnapshots

from ..config.config_runs import Runs
from ..data.stream.stream_files import WritableFolder
from .stream_runs import CONFIG, Events
from .test_gate import write_events
from .test_windows import Sum

COUNT, FIRST_BAD, END_OF_BAD = 4000, 2800, 3200
GATE = (
    "publish.gate={min_events: 100, warm_up_windows: 6, false_alarms_per_day: 0.1, on_close: return}",
    "publish.every_seconds=1000",
)
WORDS = (
    "data.event_time=at",
    "metrics.window_seconds=200",
    "optimizer.sparse.lr=0.2",
    "snapshots.every_steps=5",
    "snapshots.full_every=4",
    "snapshots.keep=2",
    "model={kind: 'summing:Sum', embedding_dim: 3}",
)


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Events:
    # Ranks that are threads share torch's random numbers, so this model has no layers.
    module: Any = types.ModuleType("summing")
    module.Sum = Sum
    monkeypatch.setitem(sys.modules, "summing", module)
    found = Events(tmp_path)
    write_events(tmp_path, COUNT, FIRST_BAD, END_OF_BAD)
    found.train = parquet.read_table(tmp_path / "events/0.parquet")
    return found


def write_stream(events: Events, name: str, num_partitions: int, left_out: Any = ()) -> str:
    """Writes the events to partitions, except those at the given (partition, begin, end)."""
    names = [str(each) for each in range(num_partitions)]
    stream = WritableFolder(events.folder / name, names, is_numbered=True)
    for number, partition in enumerate(names):
        mine = np.arange(number, COUNT, num_partitions)
        for each in left_out:
            if each.partition == partition:
                mine[each.begin : each.end] = -1
        stream.append_table(partition, events.train.take(mine[mine >= 0]), row_group_size=50)
    return str(stream.path)


def words(events: Events, url: str, name: str, *more: str) -> list[str]:
    served = () if name == "reference" else (*GATE, f"publish.url={events.folder / name}-served")
    return events.words(url, name, *WORDS, *served, *more)


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_rows_are_as_in_a_run_without_the_quarantined_events(
    events: Events, runs: Runs, world_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = write_stream(events, "whole", world_size)
    backend = ("collective.backend=threads",) if world_size > 1 else ()
    [ran, *_] = runs._run(CONFIG, (*words(events, url, "run"), *backend), world_size)
    root = str(events.folder / "run")
    quarantines = read_quarantines(root)
    assert sum("the gate closes" in each for each in ran.messages) == len(quarantines) >= 1
    assert sum("the gate opens" in each for each in ran.messages) == 1
    left_out = [each for quarantine in quarantines for each in quarantine.ranges]
    # All bad events are in these ranges, and not many others.
    for number in range(world_size):
        offsets = [
            at
            for each in left_out
            if each.partition == str(number)
            for at in range(each.begin, each.end)
        ]
        assert {*range(FIRST_BAD // world_size, END_OF_BAD // world_size)} <= {*offsets}
        assert len(offsets) < 1000 // world_size
    assert quarantines[0].num_events == sum(each.num_events for each in quarantines[0].ranges)

    # The dropped steps, and the returns, have no events.
    cuts = read_cuts(root)
    returns = [each.step for each in quarantines]
    assert not [each for each in cuts if each.step in returns or is_dropped(each.step, quarantines)]
    other = write_stream(events, "others", world_size, left_out)
    runs._run(CONFIG, (*words(events, other, "reference"), *backend), world_size)
    newest, reference = events.newest("run"), events.newest("reference")
    assert newest.step == reference.step + sum(each.step - each.good_step for each in quarantines)
    differences = list_differences(reference, newest)
    assert [each for each in differences if each.startswith("table ")] == []

    served = sparring_packed.read_gate(f"{root}-served")
    assert (served.is_closed, served.pin) == (False, "")
    if world_size > 1:
        return
    config = events.folder / "run.yaml"
    config.write_text(CONFIG)
    given = [str(config), *words(events, url, "run")]
    assert main(["replay", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["differences"]) == (newest.step, [])
    # It can also end where the run returned to, or with the return.
    for step in (quarantines[0].good_step, quarantines[0].step):
        assert main(["replay", *given, f"--until={step}", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["steps"], found["differences"] or []) == (step, [])
    repaired = str(events.folder / "repaired")
    assert main(["replay", *given, "--quarantined", f"--output={repaired}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["events"] == sum(each.num_events for each in quarantines)
    result = open_snapshot(f"{repaired}/step-{found['steps']:012d}")
    assert result.state("position").values["stream"] == newest.state("position").values["stream"]
    assert list_differences(newest, result)
    assert main(["replay", *given, "--quarantined"]) == 2
    # A run that continues after an earlier step would train the events twice.
    early = f"--start={quarantines[0].good_step}"
    assert main(["replay", *given, "--quarantined", f"--output={repaired}-2", early]) == 2
    assert f"start from step {quarantines[-1].step} or later" in capsys.readouterr().err
    assert main(["replay", *given, f"--until={quarantines[0].last_step}"]) == 2
    assert "without the dropped steps" in capsys.readouterr().err


class _Killed(BaseException):
    """The run was killed."""


@pytest.mark.slow
def test_a_run_that_is_killed_during_the_return_makes_it_later(
    events: Events, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = write_stream(events, "whole", 2)
    prefetch = "training.pipeline=true"
    runs._run(CONFIG, tuple(words(events, url, "whole-run", prefetch)))
    original = RunSnapshots.resume

    def resume(self: RunSnapshots, *arguments: Any, is_return: bool = False) -> Any:
        if is_return:
            raise _Killed
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunSnapshots, "resume", resume)
        with pytest.raises(_Killed):
            runs._run(CONFIG, tuple(words(events, url, "run", prefetch)))
    [ran] = runs._run(CONFIG, tuple(words(events, url, "run", "snapshots.resume=true", prefetch)))
    assert "the run continues from its state after step" in "".join(ran.messages)
    one, other = events.newest("whole-run"), events.newest("run")
    assert one.step == other.step
    assert list_differences(one, other) == []
    found, expected = (
        [(cut.step, cut.ranges) for cut in read_cuts(str(events.folder / each))]
        for each in ("run", "whole-run")
    )
    assert found == expected


def test_a_run_that_cannot_return_withholds(
    events: Events, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returns, "list_good_snapshots", lambda _: [])
    url = write_stream(events, "whole", 1)
    [ran] = runs._run(CONFIG, tuple(words(events, url, "run")))
    [told] = [each for each in ran.messages if "is not possible" in each]
    assert "set snapshots.every_steps" in told
    assert read_quarantines(str(events.folder / "run")) == []
    assert sum(cut.ranges[0].num_events for cut in read_cuts(str(events.folder / "run"))) == COUNT


@pytest.mark.slow
def test_the_last_return_is_the_same_after_a_resume_and_in_a_replay(
    events: Events, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second bad window exceeds `max_returns`, so its events are trained."""
    url = write_stream(events, "whole", 1)
    limit = "publish.gate.max_returns=1"
    [ran] = runs._run(CONFIG, tuple(words(events, url, "run", limit)))
    [dropped] = read_quarantines(str(events.folder / "run"))
    assert sum("publish.gate.max_returns" in each for each in ran.messages) == 1
    runs._run(CONFIG, tuple(words(events, url, "parts", limit, f"training.steps={dropped.step}")))
    [ran] = runs._run(CONFIG, tuple(words(events, url, "parts", limit, "snapshots.resume=true")))
    assert sum("publish.gate.max_returns" in each for each in ran.messages) == 1
    assert len(read_quarantines(str(events.folder / "parts"))) == 1
    assert list_differences(events.newest("run"), events.newest("parts")) == []
    config = events.folder / "run.yaml"
    config.write_text(CONFIG)
    assert main(["replay", str(config), *words(events, url, "run", limit), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []
