"""The result of a join is a function of its events, for every order of arrival before the watermark."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the store in memory writes Arrow files")

from sparring_train.data.join.joiner import Counts, Event, Example, Joiner, Window
from sparring_train.data.join.memory_store import MemoryJoinStore
from sparring_train.data.join.step_store import StepStore

WINDOW = Window(10.0, 2.0, 20.0)


def impression(time: float, key: str) -> Event:
    return Event(time, False, key.encode(), f"row {key} {time}".encode(), 0.0, 0, 1)


def action(time: float, key: str, label: float = 1.0) -> Event:
    return Event(time, True, key.encode(), b"", label, 0, 1)


def make_joiner(folder: Path, window: Window = WINDOW) -> Joiner:
    return Joiner(StepStore(MemoryJoinStore(str(folder))), window)


def joined(folder: Path, *events: Event, window: Window = WINDOW) -> tuple[list[Any], Counts]:
    """Returns (time, key, is correction, label) of the examples, and the counts."""
    joiner = make_joiner(folder, window)
    examples = joiner.advance(1, events, math.inf, 1000)
    return [(e.time, e.key.decode(), e.is_correction, e.label) for e in examples], joiner.counts


@pytest.mark.parametrize(
    ("events", "expected", "counts"),
    [
        ([impression(0, "a")], [(10, "a", False, 0)], {"without_action": 1}),
        (
            [impression(0, "a"), action(10, "a"), action(3, "a", 5.0), action(4, "b")],
            [(10, "a", False, 5)],
            {"joined": 1, "dropped": 1},
        ),
        # The clock of the action may be behind, by at most `early_seconds`.
        ([impression(2, "a"), action(0, "a")], [(12, "a", False, 1)], {"joined": 1}),
        (
            [impression(3, "a"), action(0, "a")],
            [(13, "a", False, 0)],
            {"without_action": 1, "dropped": 1},
        ),
        (
            [impression(0, "a"), action(11, "a"), action(12, "a"), action(13, "a", 4.0)],
            [(10, "a", False, 0), (11, "a", True, 1), (13, "a", True, 4)],
            {"without_action": 1, "corrected": 2, "unchanged": 1},
        ),
        (
            [impression(0, "a"), action(31, "a")],
            [(10, "a", False, 0)],
            {"without_action": 1, "dropped": 1},
        ),
        (
            [impression(0, "a"), impression(9, "a"), impression(11, "a"), action(12, "a")],
            [(10, "a", False, 0), (21, "a", False, 1)],
            {"joined": 1, "without_action": 1, "repeated": 1},
        ),
    ],
)
def test_an_action_is_the_label_of_its_impression(
    tmp_path: Path, events: list[Event], expected: list[Any], counts: dict[str, int]
) -> None:
    assert joined(tmp_path, *events) == (expected, Counts(**counts))


def test_late_labels_are_dropped_if_they_do_not_correct(tmp_path: Path) -> None:
    events = impression(0, "a"), action(11, "a")
    found = joined(tmp_path, *events, window=Window(10.0, 2.0, None))
    assert found == ([(10, "a", False, 0)], Counts(without_action=1, dropped=1))


def test_events_after_the_watermark_are_joined(tmp_path: Path) -> None:
    joiner = make_joiner(tmp_path)
    assert joiner.advance(1, [impression(0, "a")], 20, 9)[0].label == 0
    [correction] = joiner.advance(2, [action(5, "a")], 21, 9)
    assert (correction.label, correction.is_correction, correction.time) == (1, True, 10)
    [late] = joiner.advance(3, [impression(1, "b"), action(2, "b")], 22, 9)
    assert (late.key, late.label, late.is_correction) == (b"b", 1, False)
    # The action was processed when no impression of its key was known, but arrives before it expires.
    joiner.advance(4, [action(25, "c")], 26, 9)
    found = joiner.advance(5, [impression(10, "c")], 28, 9)
    assert [(each.time, each.label) for each in found] == [(20, 0), (25, 1)]


def random_events(seed: int) -> list[Event]:
    """Returns events with few keys, so that impressions repeat, and equal times."""
    generator = random.Random(seed)
    events = []
    for _ in range(120):
        key, time = f"{generator.randrange(25)}", float(generator.randrange(80))
        events.append(impression(time, key))
        while generator.random() < 0.6:
            late = time + generator.choice([-2, 0, 1, 10, 10.5, 29, 31])
            events.append(action(late, key, float(generator.randrange(1, 4))))
    return events


def arrive(folder: Path, events: list[Event], seed: int) -> tuple[list[Example], Counts]:
    """Joins events that arrive at most 5 s late, in random groups, with a limit of examples."""
    generator = random.Random(seed)
    arriving = sorted(events, key=lambda each: each.time + 5 * generator.random())
    joiner, found, step = make_joiner(folder), [], 0
    while arriving or joiner.is_behind or joiner.watermark < 200:
        step += 1
        count = generator.randrange(1, 30)
        group, arriving = arriving[:count], arriving[count:]
        # All later events are newer.
        watermark = min((each.time for each in arriving), default=200) - 1e-9
        watermark = watermark if arriving else 200
        most = generator.choice([1, 3, 1000])
        examples = joiner.advance(step, group, watermark, most)
        found += examples
    assert not joiner.waiting
    assert joiner.store.scan(-math.inf, math.inf, 9) == []
    return found, joiner.counts


def check_orders(folder: Path, count: int) -> None:
    for seed in range(2):
        events = random_events(seed)
        whole, counts = joined(folder, *events)
        assert counts.corrected > 0
        assert counts.repeated > 0
        assert counts.dropped > 0
        expected, expected_counts = arrive(folder, events, 0)
        assert [(e.time, e.key.decode(), e.is_correction, e.label) for e in expected] == whole
        assert expected_counts == counts
        for order in range(1, count):
            assert arrive(folder, events, order) == (expected, counts), (
                f"seed {seed}, order {order}"
            )


def test_the_order_of_arrival_changes_nothing(tmp_path: Path) -> None:
    check_orders(tmp_path, 12)


@pytest.mark.long
def test_a_thousand_orders_of_arrival_change_nothing(tmp_path: Path) -> None:
    check_orders(tmp_path, 1000)


def test_a_checkpoint_contains_the_state_after_its_step(tmp_path: Path) -> None:
    joiner = make_joiner(tmp_path)
    joiner.advance(1, [impression(0, "a"), impression(0, "b")], 1, 9)
    joiner.advance(2, [action(5, "a")], 6, 9)
    assert len(joiner.advance(3, [], 10, 9)) == 2
    joiner.store.checkpoint(2, str(tmp_path / "saved"))
    again = make_joiner(tmp_path / "saved")
    found = again.advance(3, [], 10, 9)
    assert [(each.key, each.label) for each in found] == [(b"a", 1), (b"b", 0)]
