"""A persistent storage is rejected if it contains rows of other ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer
from sparring.contracts import Capabilities, Collective, TableConfig
from sparring.contracts.storage.storage import interrupted_load
from sparring.errors import SparringError
from sparring.storage.convert import copy_embeddings
from sparring.storage.load import begin_load
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLE = TableConfig("item", 4)
KEYS = np.arange(100)


class Place(MemoryStorage):
    """Simulates rows on a disk: `reopened` finds them after a run."""

    def __init__(self, table: TableConfig, keeps_notes: bool) -> None:
        super().__init__(table)
        self.capabilities = Capabilities(persistent=True, notes=keeps_notes)

    def close(self) -> None:
        if not self.capabilities.notes:
            self._state.notes.clear()

    def reopened(self, plan: str) -> Place:
        placement = "replicated" if plan == "data_parallel" else "sharded"
        again = Place(replace(TABLE, placement=placement), self.capabilities.notes)
        for chunk in self.scan():
            again.upsert(chunk.keys, chunk.rows)
        again._state.notes.update(self._state.notes)
        return again


def run(places: list[Place], plan: str, *, load: str = "", save: str = "") -> list[str]:
    """Gives each rank a location, in which it writes a row per key that it owns; returns the errors."""
    world_size = len(places)

    def one(collective: Collective) -> str:
        rank = collective.rank
        place = places[rank] = places[rank].reopened(plan)
        try:
            with StepContainer(
                collective=collective,
                rendezvous=ThreadRendezvous(world_size),
                plan={TABLE.name: plan},
            ) as container:
                container.declare(place.table, place)
                if load:
                    container.load(load)
                container.assign(TABLE.name, KEYS, np.ones((len(KEYS), TABLE.dim), np.float32))
                if save:
                    container.save(save)
        except SparringError as error:
            return str(error)
        return ""

    return run_ranks(world_size, one)


@pytest.mark.parametrize("keeps_notes", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, "row_wise"), (2, "row_wise")),
        ((1, "row_wise"), (2, "data_parallel")),
        ((2, "row_wise"), (3, "row_wise")),
        ((2, "data_parallel"), (3, "data_parallel")),
        ((2, "row_wise"), (1, "row_wise")),
    ],
)
def test_rows_of_other_ranks_are_rejected_until_a_snapshot_is_loaded(
    before: tuple[int, str], after: tuple[int, str], keeps_notes: bool, tmp_path: Path
) -> None:
    """A backend without notes cannot detect on one rank that other locations have the other rows."""
    places = [Place(TABLE, keeps_notes) for _ in range(max(before[0], after[0]))]
    first = places[: before[0]]
    assert run(first, before[1], save=str(tmp_path / "saved")) == [""] * before[0]
    again = [*first, *places[before[0] :]][: after[0]]
    errors = run(list(again), after[1])
    if keeps_notes or after[0] > 1:
        whose = "(rank 0 of|all partitions)" if keeps_notes else "unknown ranks"
        message = (
            f"'item': its storage contains .* rows of {whose}.*transfer the rows with a snapshot"
        )
        assert re.search(message, "\n".join(errors)), errors
    assert run(again, after[1], load=str(tmp_path / "saved")) == [""] * after[0]
    if keeps_notes:
        assert run(again, after[1]) == [""] * after[0]


def test_a_copy_of_rows_keeps_their_metadata() -> None:
    """`sparring convert` copies the rows of one rank, or of an interrupted load."""
    source, target = Place(TABLE, True), Place(TABLE, True)
    begin_load(source, "snapshots/7")
    copy_embeddings(source, target, np.empty(0, np.float32))
    assert interrupted_load(target) == "snapshots/7"
    places = [Place(TABLE, True), Place(TABLE, True)]
    assert run(places, "row_wise") == ["", ""]
    copies = [Place(TABLE, True), Place(TABLE, True)]
    for one, copy in zip(places, copies, strict=True):
        copy_embeddings(one, copy, np.empty(0, np.float32))
    assert run(list(copies), "row_wise") == ["", ""]
    assert "rows of rank 0 of 2" in run(copies[:1], "row_wise")[0]
