"""Times of a step by part: inner spans are subtracted, and other threads are left out."""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path

import pytest

from sparring_train.report import step_times
from sparring_train.report.host import resident_memory_bytes
from sparring_train.report.run_data import Points
from sparring_train.report.step_times import PARTS, StepTimes, final_seconds


class Clock:
    """A clock that tests set."""

    now = 0

    def perf_counter_ns(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(step_times, "time", made)
    return made


def test_each_part_has_its_own_time(clock: Clock) -> None:
    clock.now = 5
    times = StepTimes()
    with times.span("forward", step=1):
        clock.now += 10
        with times.span("look up"):
            clock.now += 100
            with times.span("find"):  # Belongs to the lookup.
                clock.now += 30
            times.add("wait", clock.now - 40, clock.now)
            times.add("find", 0, 7)  # Of a job, not of this thread.
        clock.now += 1000
    with times.span("evaluate"), times.span("forward"), times.span("look up"):
        clock.now += 10_000
    clock.now += 100_000
    expected = {"lookup": 90, "exchange": 40, "dense": 1010, "evaluation": 10_000, "other": 100_000}
    found = {part: round(seconds * 1e9) for part, seconds in times.seconds().items()}
    assert found == dict.fromkeys(PARTS, 0) | expected | {"total": sum(expected.values())}
    assert times.spans == []


def test_no_part_decreases_when_a_span_ends(clock: Clock) -> None:
    times = StepTimes()
    clock.now += 5
    with times.span("apply"):
        clock.now += 100
        with times.span("forward"):
            clock.now += 10
        within = times.seconds()
    after = times.seconds()
    assert round(within["other"] * 1e9) == round(after["other"] * 1e9) == 5
    assert round(after["update"] * 1e9) == 100


def test_spans_of_other_threads_are_kept_and_not_counted() -> None:
    times = StepTimes(keeps_spans=True)

    def work() -> None:
        with times.span("look up"):
            time.sleep(0.01)
        times.add("wait", 0, 10**9)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    times.add_transfer("send keys", 1, 2)
    times.add_to_line("stream", "copy", 1, 2)
    assert [span.name for span in times.spans] == ["look up", "wait", "send keys", "copy"]
    assert times.seconds()["lookup"] == times.seconds()["exchange"] == 0


def test_a_span_that_raises_is_closed(clock: Clock) -> None:
    times = StepTimes()

    def fail() -> None:
        with times.span("apply"):
            clock.now += 7
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock.now += 1
    assert round(times.seconds()["update"] * 1e9) == 7
    assert round(times.seconds()["other"] * 1e9) == 1


def test_parts_without_time_are_left_out() -> None:
    series = {
        f"seconds/{part}": Points(steps=[0, 2], values=[0, seconds])
        for part, seconds in {"save": 0.0, "dense": 2.0, "data": 1.0, "total": 3.0}.items()
    }
    assert final_seconds(series) == {"data": 1.0, "dense": 2.0}
    assert final_seconds({}) == {}


def test_the_resident_memory_follows_an_allocation(tmp_path: Path) -> None:
    before = resident_memory_bytes()
    # Not from the allocator, which may reuse freed memory that is still resident.
    with mmap.mmap(-1, 64 << 20) as large:
        large.write(b"x" * (64 << 20))
        assert resident_memory_bytes() > before + (60 << 20)
    (tmp_path / "statm").write_text("damaged")
    assert resident_memory_bytes(tmp_path / "statm") == 0
    assert resident_memory_bytes(tmp_path / "none") == 0
