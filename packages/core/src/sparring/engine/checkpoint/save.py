"""Saves: ranks agree on a snapshot, freeze the tables, and a job writes them while steps continue."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial

from sparring import _native
from sparring.collective.coordinator import Coordinator
from sparring.contracts.checkpoint import SaveOptions, SaveResult, State
from sparring.engine.checkpoint.container_state import RESERVED_STATES, collect_container_states
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView, UndoBudget
from sparring.engine.checkpoint.save_manager import SnapshotJob, TableJob, Throttle, give_up
from sparring.engine.state import EngineState, Purpose, try_quiesce
from sparring.engine.tables.entry import TableEntry
from sparring.errors import InvalidArgumentError
from sparring.runtime import pool
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import locate
from sparring.snapshot.row_router import SnapshotOptions
from sparring.snapshot.writer import SnapshotWriter

__all__ = ["save"]

_FEW_CORES, _SHARE_OF_FEW_CORES = 4, 0.15
_TOKEN_BYTES = 16

_log = logging.getLogger(__name__)


def save(
    state: EngineState,
    url: str,
    *,
    blocking: bool,
    base: str | None,
    states: Mapping[str, State],
    options: SaveOptions,
) -> pool.Task[SaveResult] | SaveResult:
    """Implements `StepContainer.save`."""
    _check_states(states)
    coordinator = Coordinator(state.collective, f"save of {url}")
    own_error = try_quiesce(state, Purpose.REPLACE, save_seconds=options.deadline_seconds)
    share = 1.0 if blocking else _share(options)
    job = _begin(state, coordinator, url, base, states, options, share, own_error)
    state.saves.counters.freeze_seconds += time.perf_counter() - job.begin
    state.saves.running = job
    if not blocking:
        try:
            state.saves.task = state.events.submit(
                partial(_run, state, job, options),
                name=f"save of {url}",
                report_failure=options.report_failure,
                closing_seconds=options.deadline_seconds,
            )
        except BaseException as not_begun:
            _restore_counted_keys(job, options)
            job.release()
            job.is_over.set()
            give_up(job.writer, not_begun)
            raise
        return state.saves.task
    state.saves.task = None
    error: Exception | None = None
    saved: SaveResult | None = None
    try:
        saved = _run(state, job, options)
    except Exception as failure:
        error = failure
    state.saves.join()
    coordinator.agree(error)
    assert saved is not None
    return saved


def _check_states(states: Mapping[str, State]) -> None:
    for name in states:
        if name in RESERVED_STATES:
            raise InvalidArgumentError(
                f"save: the name of state {name!r} is reserved for the container; choose another name"
            )
        if not isinstance(states[name], State):
            raise InvalidArgumentError(
                f"save: state {name!r} must be a State, found {type(states[name]).__name__}; "
                "pass State(values, arrays)"
            )


def _begin(
    state: EngineState,
    coordinator: Coordinator,
    url: str,
    base: str | None,
    states: Mapping[str, State],
    options: SaveOptions,
    share: float,
    error: Exception | None,
) -> SnapshotJob:
    """Freezes all tables in their current state, and creates the job that writes them.

    Args:
        error: error of this rank, if it cannot save; raised on all ranks.
    """
    begin = time.perf_counter()
    entries = list(state.tables.entries.values())
    rank, step = state.membership.rank, state.counters.steps
    if error is None:
        error = _check_apart(state, url, options)
    if options.step is not None:
        step = options.step
    if error is None:
        try:
            for entry in entries:
                state.tables.check_readable(entry)
        except Exception as failure:
            error = failure
    coordinator.all_equal(
        {"URL": url}, "ranks save to different URLs", "pass the same URL on all ranks"
    )
    mine = [
        each
        for each in entries
        if each.storage is not None and not (each.config.is_replicated and rank)
    ]
    token, base = _agree_on_base(state, coordinator, url, base, mine)
    token = options.token or token
    given = {name: each for name, each in states.items() if each.is_of_rank or not rank}
    own: Mapping[str, State] = {}
    writer: SnapshotWriter | None = None
    budget = UndoBudget(options.undo_bytes)
    throttle = Throttle(share, budget)
    tables: list[TableJob] = []
    try:
        if error is not None:
            raise error
        own = collect_container_states(state)
        writer = SnapshotWriter(
            url,
            step=step,
            rank=rank,
            world_size=state.membership.world_size,
            base=base,
            deadline_seconds=options.deadline_seconds,
            token=token,
            options=SnapshotOptions(pause=throttle.pause, index_keys=options.index_keys),
        )
        writer.start_threads()
        for entry in entries:
            part = budget if entry in mine else None
            tables.append(_table_job(entry, part, base is not None, is_base=options.is_base))
    except Exception as failure:
        error = failure
    try:
        # All ranks start or none, because the commit would wait for missing parts, and a failing rank
        # removes the folder that another rank may be creating.
        coordinator.agree(error)
    except BaseException:
        if writer is not None:
            give_up(writer)
        raise
    assert writer is not None
    for table in tables:
        table.begin()
        if options.is_base:
            table.counted = table.log.changed
            table.log.changed = _native.KeySet()
    return SnapshotJob(
        writer.url,
        step,
        base,
        writer,
        tables,
        {**own, **given},
        budget,
        options.retention,
        state.saves.history,
        begin,
        throttle,
        options.deadline_seconds,
    )


def _check_apart(state: EngineState, url: str, options: SaveOptions) -> InvalidArgumentError | None:
    """Returns an error if `token` and `step` of the options do not match the kind of ranks."""
    is_independent = state.collective.world_size < state.membership.world_size
    if is_independent and options.token is None:
        return InvalidArgumentError(
            f"save of {url}: rank {state.membership.rank} of {state.membership.world_size} has no "
            "collective with the other ranks, so they cannot agree on a save; set the same token and "
            "step in the SaveOptions of all of them"
        )
    if state.collective.world_size > 1 and (options.token, options.step) != (None, None):
        return InvalidArgumentError(
            f"save of {url}: token and step of SaveOptions are for ranks without a collective, but these "
            f"{state.membership.world_size} ranks have one; leave them out"
        )
    return None


def _table_job(
    entry: TableEntry, budget: UndoBudget | None, is_delta: bool, *, is_base: bool
) -> TableJob:
    """Freezes a table. Without a budget, this rank has no rows of it to save."""
    storage = entry.storage
    has_scores = storage is not None and storage.capabilities.scores != "none"
    block = entry.block
    table = entry.config if block is None else block.whole.config
    description = TableDescription.of(table, has_scores=has_scores)
    view = None
    if storage is not None and budget is not None:
        changed = entry.write_log.changed if is_delta else None
        if changed is not None and not is_base:
            # The log continues tracking since the same base, so the save gets a copy of the set.
            counted, changed = changed, _native.KeySet()
            changed.add(counted.keys())
        view = CopyOnWriteView(entry.config, storage, budget, changed)
    columns = None if block is None else block.columns
    return TableJob(description, view, entry.write_log, is_delta, columns)


def _agree_on_base(
    state: EngineState,
    coordinator: Coordinator,
    url: str,
    base: str | None,
    entries: Sequence[TableEntry],
) -> tuple[str, str | None]:
    """Returns the token of this save and its base; the same on all ranks."""
    counted_since = state.saves.base
    if base is not None:
        membership, name = locate(base)
        base = membership.url_of(name)
    every = coordinator.gather(
        {
            "token": secrets.token_hex(_TOKEN_BYTES),
            "base": base,
            "is_known": base is None or base == counted_since,
            "are_counted": all(entry.write_log.changed is not None for entry in entries),
        }
    )
    token: str = every[0]["token"]
    if not all(each["is_known"] for each in every):
        raise InvalidArgumentError(
            f"save of {url}: a delta over {base} was requested, but changed keys are tracked "
            f"since {counted_since or 'no snapshot'}; save a full snapshot with "
            "options=SaveOptions(is_base=True) first, and pass its URL as base",
            url=url,
            base=base,
        )
    if len({each["base"] for each in every}) > 1:
        # If the save of a base failed on some ranks, only these ranks know of it.
        _log.warning(
            "save of %s: ranks track changed keys since different snapshots, because a save failed "
            "on some of them; a full snapshot is written",
            url,
        )
        base = None
    if base is not None and not all(each["are_counted"] for each in every):
        _log.warning(
            "save of %s: more keys changed since %s than are tracked, or all rows of a table "
            "were replaced; a full snapshot is written",
            url,
            base,
        )
        base = None
    return token, base


def _run(state: EngineState, job: SnapshotJob, options: SaveOptions) -> SaveResult:
    """Runs the job, on the thread of the save."""
    try:
        saved = job.run()
    except BaseException:
        _restore_counted_keys(job, options)
        raise
    state.saves.newest = saved.url, saved.step
    if options.is_base:
        state.saves.base = job.url
    return saved


def _restore_counted_keys(job: SnapshotJob, options: SaveOptions) -> None:
    """After a failed save, adds the keys that were tracked before it to the tracked keys again."""
    if not options.is_base:
        return
    for table in job.tables:
        before, since = table.counted, table.log.changed
        if before is None or since is None:
            table.log.changed = None
        else:
            since.add(before.keys())


def _share(options: SaveOptions) -> float:
    if options.share is not None:
        return options.share
    return _SHARE_OF_FEW_CORES if pool.num_threads() <= _FEW_CORES else 1.0
