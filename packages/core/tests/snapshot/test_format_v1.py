"""Snapshots of format 1, kept as they were written, are read by every release.

`format_v1` was written by `python packages/core/tests/snapshot/test_format_v1.py FOLDER` of release 0.1,
on two ranks: `full`, and over it `delta`. It is never written again: a later release that writes
something else adds a folder.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions, State
from sparring.contracts.ranks.collective import Reduction
from sparring.contracts.tables.admission import Bloom, Frequency
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import SnapshotError
from sparring.snapshot.format.manifest import text_hash
from sparring.snapshot.reader import open_snapshot
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import choose_method, declare_tables, join_rows

FOLDER = Path(__file__).parent / "format_v1"

ZEROS: dict[str, Any] = {"initializer": "zeros"}
TABLES = [
    TableConfig("plain", 3, **ZEROS),
    TableConfig("wide", 2, "float64", **ZEROS),
    TableConfig("half", 3, "bfloat16", **ZEROS),
    TableConfig("counted", 2, admission=Frequency(2), **ZEROS),
    TableConfig("bloom", 2, admission=Bloom(2, expected_keys=8), **ZEROS),
    TableConfig("replicated", 2, placement="replicated", **ZEROS),
    TableConfig("expiring", 2, expire={"after_steps": 3}, **ZEROS),
]
STEPS = ([1, 2, 3, -(2**63)], [2, 3], [3, 4, 2**63 - 1], [4, 5])
"""The ids of each step; `full` is after two of them, `delta` after three."""

Contents = dict[str, dict[str, list[list[float]]]]
"""Table → key → embedding and state."""


def declare(made: StepContainer) -> None:
    made.state.clock = lambda: 0.0
    declare_tables(made, TABLES, "memory", "rowwise_adagrad", initial_accumulator_value=7)


def train(made: StepContainer, ids: Sequence[int]) -> None:
    """By an optimizer with a row's state of one element, so that every row has some."""
    mine = ids if made.collective.rank == 0 else []
    for table in TABLES:
        found = made.lookup(table.name, np.array(mine, np.int64))
        if len(mine):
            gradient = np.ones((len(found.keys), table.dim), table.computing_dtype)
            made.resources.accumulate(found.shadow_id or 0, gradient)
    made.apply_methods(choose_method(made, "rowwise_adagrad", lr=1.0))


def write(folder: str) -> None:
    """Writes both snapshots, and their expected contents."""

    def body(made: StepContainer) -> list[Contents]:
        declare(made)
        options = SaveOptions(is_base=True)
        states = {
            "mine": State({"loss": float("inf")}, {"w": np.arange(6, dtype=np.float32)}),
            "of_rank": State({"rank": made.collective.rank}, is_of_rank=True),
        }
        train(made, STEPS[0])
        train(made, STEPS[1])
        made.save(f"{folder}/full", options=options, states=states)
        held = [contents(made)]
        train(made, STEPS[2])
        made.storage("plain").erase([2])
        made.save(f"{folder}/delta", base=f"{folder}/full", options=options, states=states)
        return [*held, contents(made)]

    ranks = run_containers(2, body, reduction=Reduction.SUM)
    for name, parts in zip(("full", "delta"), zip(*ranks, strict=True), strict=True):
        text = json.dumps(join_rows(parts, ["replicated"]), indent=1) + "\n"
        Path(folder, f"{name}.json").write_text(text)


def contents(made: StepContainer) -> Contents:
    return {
        table.name: {
            str(key): [
                table.embeddings(row[None])[0].astype(float).tolist(),
                table.state(row[None])[0].astype(float).tolist(),
            ]
            for chunk in made.storage(table.name).scan()
            for key, row in zip(chunk.keys, chunk.rows, strict=True)
        }
        for table in made.tables.values()
    }


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("name", "num_steps"), [("full", 2), ("delta", 3)])
def test_a_snapshot_of_format_1_is_loaded_and_continued(
    name: str, num_steps: int, world_size: int
) -> None:
    def body(made: StepContainer) -> list[Contents]:
        declare(made)
        loaded = made.load(str(FOLDER / name))
        assert loaded.step == num_steps
        assert loaded.states["mine"].values == {"loss": float("inf")}
        assert loaded.states["mine"].arrays["w"].tolist() == list(range(6))
        held = [contents(made)]
        for ids in STEPS[num_steps:]:
            train(made, ids)
        return [*held, contents(made)]

    parts = run_containers(world_size, body, reduction=Reduction.SUM)
    expected = json.loads((FOLDER / f"{name}.json").read_text())
    assert join_rows([each[0] for each in parts], ["replicated"]) == expected
    # Filters and visits were loaded, too: 4 occurs for the second time, and 1 has expired.
    went_on = join_rows([each[1] for each in parts], ["replicated"])
    assert went_on["counted"].keys() == went_on["bloom"].keys() == {"2", "3", "4"}
    assert went_on["expiring"].keys() == {"2", "3", "4", "5", str(2**63 - 1)}


@pytest.mark.parametrize("name", ["full", "delta"])
def test_a_snapshot_of_format_1_is_valid(name: str) -> None:
    assert verify_snapshot(open_snapshot(str(FOLDER / name))).is_sound


@pytest.mark.parametrize("says", ["0.7", None])
def test_a_newer_format_is_rejected_with_the_release_that_reads_it(
    says: str | None, tmp_path: Path
) -> None:
    shutil.copytree(FOLDER / "full", tmp_path / "full")
    path = tmp_path / "full" / "manifest.json"
    fields = json.loads(path.read_text()) | {"version": 2, "what_is_new": {}}
    del fields["hash"]
    text = json.dumps(fields | ({"read_by": says} if says else {}), indent=1)[:-2]
    path.write_text(f'{text},\n "hash": "{text_hash((text + ",").encode())}"\n}}\n')
    release = "sparring>=0.7" if says else "a later release of sparring"
    with pytest.raises(
        SnapshotError, match=rf"has format 2.* reads only format 1.*{release}"
    ) as caught:
        open_snapshot(str(tmp_path / "full"))
    assert type(caught.value) is SnapshotError, "it is not damaged"


if __name__ == "__main__":
    write(sys.argv[1])
