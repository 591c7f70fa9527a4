"""Creates the state of one rank's engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.layout import ShardingPlan
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.engine.checkpoint.flush_manager import FlushManager
from sparring.engine.checkpoint.load_manager import LoadManager
from sparring.engine.checkpoint.save_manager import SaveManager
from sparring.engine.job.fingerprint import JobFingerprint
from sparring.engine.lookup.prefetch_thread import PrefetchThread
from sparring.engine.resource_manager import ResourceManager
from sparring.engine.state import EngineState, NonFinite, find_membership
from sparring.engine.tables.tables import Tables
from sparring.errors import InvalidArgumentError
from sparring.exchange.ring import RingExchange
from sparring.runtime.events import EventLoop
from sparring.storage.load import BusyStorages

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["create_state"]


def create_state(  # noqa: PLR0913 - each is a part of the job, by keyword
    *,
    collective: Collective,
    rendezvous: Rendezvous,
    non_finite: NonFinite,
    reduction: Reduction,
    exchange: ExchangeOptions | None,
    memory_bytes: int | None,
    config: Mapping[str, Any],
    plugin_manager: PluginManager | None,
    plan: ShardingPlan,
) -> EngineState:
    """Creates the state of an engine; `StepContainer` describes the arguments."""
    shards = rendezvous.shard_map()
    membership = find_membership(collective, rendezvous)
    if reduction is Reduction.MAX:
        raise InvalidArgumentError("container: reduction must be SUM or MEAN, found MAX")
    if memory_bytes is not None and memory_bytes < 1:
        raise InvalidArgumentError(
            f"container: memory_bytes must be at least 1, or None for no limit, found "
            f"{memory_bytes}"
        )
    resources, events, at_work = ResourceManager(), EventLoop(), BusyStorages()
    # Half the deadline, so that other ranks are notified in time if a flush blocks this rank.
    max_seconds = collective.deadline_seconds / 2 if collective.world_size > 1 else None
    fingerprint = JobFingerprint(config)
    tables = Tables(membership, rendezvous, resources, events, plugin_manager, plan)
    state = EngineState(
        collective=collective,
        membership=membership,
        shard_map=shards,
        exchange=RingExchange(
            collective,
            shards,
            exchange,
            settings=lambda: fingerprint.describe(state),
            layout_of=tables.layout_of,
        ),
        tables=tables,
        resources=resources,
        events=events,
        at_work=at_work,
        prefetches=PrefetchThread(),
        loads=LoadManager(),
        saves=SaveManager(events),
        flushes=FlushManager(events, at_work, max_seconds),
        reduction=reduction,
        non_finite=non_finite,
        memory_bytes=memory_bytes,
    )
    return state
