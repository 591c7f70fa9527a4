"""Pins and edits of a plan are kept by `make`, and `check` reports their cost."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from sparring_cli import Document, read_document
from sparring_cli.application import main
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration
from sparring_plan.planning.plan import Plan, read_plan
from sparring_plan.planning.search.placement import Placement
from sparring_plan.planning.search.search import search

from .brute_force import best_by_brute_force, placements_of, random_inputs

INPUTS = """
topology:
  nodes: 2
  ranks_per_node: 2
  memory: {host: 2 GiB}
  far: {gbit: 10, latency_us: 20}
samples: 512
kinds: [row_wise, data_parallel, table_wise]
transfers: [rows]
tables:
  users: {dim: 32, method: adam, features: {user: {ids: 1}}, rows: 1000000}
  films: {dim: 32, method: adagrad, features: {seen: {ids: 20}}, rows: 325000}
"""


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as path:
        return read_document(path).as_model(Calibration)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "inputs.yaml"
    path.write_text(INPUTS)
    return path


def edited(text: str, table: str, **changes: str) -> str:
    """Writes the file of a plan with other values of a table."""
    lines = text.splitlines()
    at = lines.index(f"  {table}:")
    after = next(
        (line for line in range(at + 1, len(lines)) if not lines[line].startswith("   ")),
        len(lines),
    )
    for key, value in changes.items():
        place = next(
            (line for line in range(at + 1, after) if lines[line].startswith(f"    {key}:")), None
        )
        if place is None:
            lines.insert(at + 1, f"    {key}: {value}")
        else:
            lines[place] = f"    {key}: {value}"
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("how", ["pinned", "edited", "from another file"])
def test_pins_and_edits_are_kept_and_have_the_cost_reported_by_check(
    how: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written.with_name("plan.yaml")
    make = ["plan", "make", str(written), "--output", str(plan)]
    assert main(make) == 0
    first = plan.read_text()
    choice = {"kind": "table_wise", "ranks": "[2]", "columns": "1", "transfer": "rows"}
    assert read_plan(plan).tables["users"].kind != "table_wise"
    text = edited(first, "users", **choice)
    if how == "pinned":
        # Like a pin that is added after `make` has written the file: no digest detects the edit.
        made = (
            read_document(plan)
            .as_model(Plan)
            .tables["users"]
            .model_copy(
                update={"kind": "table_wise", "ranks": [2], "columns": 1, "transfer": "rows"}
            )
        )
        text = edited(text, "users", pinned="true", made=f'"{made.choice_digest}"')
    assert read_document(plan).as_model(Plan).kept == []
    plan.write_text(text)
    assert read_plan(plan).kept == ["users"]
    if how == "from another file":
        pins = plan.rename(written.with_name("pins.yaml"))
        make += ["--pin", str(pins)]
    capsys.readouterr()
    assert main(make) == 0
    assert "kept from" in capsys.readouterr().err
    again = read_plan(plan)
    assert again.tables["users"].kind == "table_wise"
    assert again.tables["users"].ranks == [2]
    assert again.kept == ["users"]
    assert again.step_ms >= read_document(plan).as_model(Plan).bound_ms
    # Once kept it is pinned, so it remains; check reports its cost.
    capsys.readouterr()
    assert main(["plan", "check", str(plan), str(written)]) == 0
    told = capsys.readouterr().out
    best = Plan.model_validate(read_document_of(first)).step_ms
    assert f"pinned or edited: users; the best plan found with these: {again.step_ms:g} ms" in told
    assert f"without: {best:g} ms" in told
    assert again.step_ms > best
    assert main(make) == 0
    assert plan.read_text() == again.to_yaml()


def read_document_of(text: str) -> Any:
    return Document("text", text).value


def test_impossible_pins_are_rejected(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = written.with_name("plan.yaml")
    make = ["plan", "make", str(written), "--output", str(plan)]
    assert main(make) == 0
    first = plan.read_text()
    choice = {"kind": "table_wise", "columns": "1", "transfer": "rows"}
    plan.write_text(edited(first, "users", ranks="[9]", **choice))
    assert main(make) == 2
    assert "expected ranks from 0 to 3" in capsys.readouterr().err
    plan.write_text(edited(first, "users", ranks="[1]", **choice))
    written.write_text(INPUTS.replace("host: 2 GiB", "host: 300 MiB"))
    assert main(make) == 1
    told = capsys.readouterr().err
    assert "the pinned tables do not fit: rank 1 needs" in told
    written.write_text(INPUTS.replace("nodes: 2", "nodes: 3"))
    assert main(make) == 2
    assert "the plan is for 4 ranks, but the topology has 6" in capsys.readouterr().err


def test_pins_are_kept_in_the_best_of_all_plans(calibration: Calibration) -> None:
    tried = 0
    for seed in range(8):
        inputs = random_inputs(seed)
        options = compute_option_costs(inputs, calibration)
        found = search(options)
        if found is None:
            continue
        # A table is pinned to an option that no search would select: the worst of those that fit.
        worst = max(
            (each for each in options.of(0)),
            key=lambda each: (options.base + options.shard)[each].max(),
        )
        pins = Placement(options)
        pins.put(0, worst, next(placements_of(options, worst)))
        kept = search(options, pins) if pins.fits else None
        if kept is None:
            continue
        assert kept.placement.option[0] == worst
        assert (kept.placement.owns[0] == pins.owns[0]).all()
        best = best_by_brute_force(options, pins)
        assert best is not None
        assert kept.bound_seconds <= best * (1 + 1e-9)
        assert kept.placement.seconds <= best * 1.05
        tried += 1
    assert tried >= 4
