"""State of a job from the pages of its processes: step times, the slowest rank, hit rates, latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from sparring_cli.metrics.scrape import Interval

__all__ = ["JobState", "ProcessState", "ServingState", "describe_job", "describe_process"]

_WAITING = "exchange"
"""Part of a step in which a rank waits for other ranks. The slowest rank waits least."""

_NOT_STEP = frozenset({"evaluation"})
_EVEN_SHARE = 0.05
"""Ranks are even if the slowest works at most this share longer than the median of the others."""


@dataclass(frozen=True, slots=True)
class ServingState:
    """Requests to a server.

    Args:
        calls_per_second: Rate of pulls and recommendations; None if only one reading is known.
        p50_seconds: Median time of a pull; None without pulls.
        p99_seconds: 99th percentile of it.
        found_share: Share of the requested ids that had a row.
        failed: Number of calls with another status than OK.
        staleness_seconds: Age of the served version.
        version_step: Training step of the served version.
        is_behind: Whether a newer version was rejected.
    """

    calls_per_second: float | None
    p50_seconds: float | None
    p99_seconds: float | None
    found_share: float | None
    failed: float
    staleness_seconds: float | None
    version_step: float | None
    is_behind: bool


@dataclass(frozen=True, slots=True)
class LearningState:
    """Pushes to a shard of tables that learn.

    Args:
        pushed_steps: Number of applied pushes; lower in a follower that is behind.
        pushes_per_second: Rate of applied pushes; None if only one reading is known.
        pushes_waiting: Number of pushes in the queue.
        role: ``leader`` or ``follower``; None for a shard without replicas.
        followers_in_sync: Number of followers of a leader that have every acknowledged push.
        follower_lag_records: Records that the slowest follower of a leader does not have.
        lacks_follower: Whether a leader has followers, and none is in sync.
        are_pushes_lost: Whether acknowledged pushes may be missing.
    """

    pushed_steps: float | None
    pushes_per_second: float | None
    pushes_waiting: float | None
    role: str | None
    followers_in_sync: float | None
    follower_lag_records: float | None
    lacks_follower: bool
    are_pushes_lost: bool


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of one process.

    Args:
        url: URL of its page.
        rank: Its rank; None for a server.
        error: Why the page could not be read; the other values are then unknown.
        steps: Number of steps since the start of the run.
        step_seconds: Time per step; None if no step was made between the readings.
        parts: Part of the step → seconds per step.
        is_since_start: Whether times and rates are averages since the start of the process.
        hit_rates: Table, tier and backend, or cache → share of keys that it contained.
        memory_bytes: Memory of the process, or of its tables if the page does not contain it.
        memory_limit_bytes: Limit of the memory.
        lag_seconds: Lag of a stream → median and 99th percentile.
        serving: State of a server.
        learning: Pushes to a shard of tables that learn.
    """

    url: str
    rank: str | None = None
    error: str | None = None
    steps: float | None = None
    step_seconds: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    is_since_start: bool = False
    hit_rates: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    lag_seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    serving: ServingState | None = None
    learning: LearningState | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """State of all processes, and the slowest rank: its rank, the part of the step, and a sentence."""

    processes: Sequence[ProcessState]
    slowest_rank: str | None = None
    slowest_part: str | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the values for JSON."""
        return asdict(self)


def describe_process(url: str, interval: Interval) -> ProcessState:
    """Returns the state of a process from two readings of its page."""
    ranks = interval.by_label("sparring_steps_total", "rank")
    steps = interval.increase("sparring_steps_total")
    parts: dict[str, float] = {}
    step_seconds = None
    if steps:
        seconds = interval.by_label("sparring_steps_seconds_total", "kind")
        parts = {part: each / steps for (part,), each in seconds.items() if part not in _NOT_STEP}
        # A page is written at intervals, so the time of a reading is not the time of its counters.
        if parts:
            step_seconds = sum(parts.values())
        elif interval.seconds:
            step_seconds = interval.seconds / steps
    memory = [
        interval.gauge(f"sparring_{name}")
        for name in ("process_memory_bytes", "serving_memory_bytes", "tables_memory_bytes")
    ]
    limits = [
        interval.gauge(f"sparring_{name}_memory_limit_bytes") for name in ("process", "serving")
    ]
    return ProcessState(
        url=url,
        rank=next((rank for (rank,) in ranks), None),
        steps=interval.gauge("sparring_steps_total"),
        step_seconds=step_seconds,
        parts={part: each for part, each in parts.items() if each > 0},
        is_since_start=not interval.seconds,
        hit_rates=_hit_rates(interval),
        memory_bytes=next((each for each in memory if each is not None), None),
        memory_limit_bytes=next((each for each in limits if each is not None), None),
        lag_seconds={
            name: found
            for name in ("event_lag", "ingest_lag", "step_lag")
            if (found := interval.quantiles(f"sparring_stream_{name}_seconds", 0.5, 0.99))
        },
        serving=_serving(interval),
        learning=_learning(interval),
    )


def _hit_rates(interval: Interval) -> dict[str, float]:
    labels = ("table", "tier", "backend")
    hits = interval.by_label("sparring_tiers_hits_total", *labels)
    misses = interval.by_label("sparring_tiers_misses_total", *labels)
    found = {}
    for place, count in hits.items():
        if total := count + misses.get(place, 0.0):
            found[f"{place[0]} tier {place[1]} ({place[2]})"] = count / total
    in_cache = interval.increase("sparring_serving_cache_hits") or 0.0
    if total := in_cache + (interval.increase("sparring_serving_cache_misses") or 0.0):
        found["cache of the service"] = in_cache / total
    return found


def _serving(interval: Interval) -> ServingState | None:
    step = interval.gauge("sparring_serving_version_step")
    calls = interval.by_label("sparring_serving_pulls_total", "code")
    for place, count in interval.by_label("sparring_serving_recommends_total", "code").items():
        calls[place] = calls.get(place, 0.0) + count
    if step is None and not calls:
        return None
    times = interval.quantiles("sparring_serving_pull_seconds", 0.5, 0.99)
    ids = interval.increase("sparring_serving_ids_total")
    found = interval.increase("sparring_serving_found_total")
    return ServingState(
        calls_per_second=sum(calls.values()) / interval.seconds if interval.seconds else None,
        p50_seconds=times[0] if times else None,
        p99_seconds=times[1] if times else None,
        found_share=found / ids if ids and found is not None else None,
        failed=sum(count for (code,), count in calls.items() if code != "OK"),
        staleness_seconds=interval.gauge("sparring_serving_staleness_seconds"),
        version_step=step,
        is_behind=bool(interval.gauge("sparring_serving_is_behind")),
    )


def _learning(interval: Interval) -> LearningState | None:
    pushes = interval.increase("sparring_serving_pushed_steps")
    if pushes is None:
        return None
    is_leader = interval.gauge("sparring_serving_is_leader")
    role = None if is_leader is None else "leader" if is_leader else "follower"
    followers = interval.gauge("sparring_serving_followers_in_sync")
    lag = interval.gauge("sparring_serving_follower_lag_records")
    return LearningState(
        pushed_steps=interval.gauge("sparring_serving_pushed_steps"),
        pushes_per_second=max(0.0, pushes) / interval.seconds if interval.seconds else None,
        pushes_waiting=interval.gauge("sparring_serving_pushes_waiting"),
        role=role,
        followers_in_sync=followers if is_leader else None,
        follower_lag_records=lag if is_leader else None,
        lacks_follower=bool(interval.gauge("sparring_serving_lacks_follower")),
        are_pushes_lost=bool(interval.gauge("sparring_serving_pushes_lost")),
    )


def describe_job(processes: Sequence[ProcessState]) -> JobState:
    """Finds the slowest rank: the one whose steps contain the most time outside of waiting."""
    ranks = [each for each in processes if each.parts and each.rank is not None]
    if len(ranks) < 2:
        return JobState(processes)
    work = [sum(each.values()) - each.get(_WAITING, 0.0) for each in (rank.parts for rank in ranks)]
    place = max(range(len(ranks)), key=work.__getitem__)
    slowest, others = ranks[place], [each for each in ranks if each is not ranks[place]]
    usual = median(each for at, each in enumerate(work) if at != place)
    if work[place] <= (1 + _EVEN_SHARE) * usual:
        return JobState(processes, reason="All ranks are about equally fast.")

    def excess(part: str) -> float:
        return slowest.parts[part] - median(each.parts.get(part, 0.0) for each in others)

    part = max((each for each in slowest.parts if each != _WAITING), key=excess)
    reason = (
        f"Rank {slowest.rank} is the slowest: {1e3 * work[place]:,.1f} ms of work per step, "
        f"{1e3 * usual:,.1f} ms in the median of the others. The largest difference is {part}: "
        f"{1e3 * slowest.parts[part]:,.1f} ms, {1e3 * excess(part):,.1f} ms more."
    )
    return JobState(processes, slowest.rank, part, reason)
