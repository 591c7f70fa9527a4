"""A batch whose lookups have begun before its turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparring import StepContainer
from sparring.step import LookupAhead
from sparring_torch.batch_paths import Call
from sparring_torch.shadow_pooling import Plan
from sparring_torch.train_agent import Ahead, TrainAgent

__all__ = ["BatchAhead"]


@dataclass(frozen=True, slots=True)
class _Planned:
    agent: TrainAgent
    plan: Plan


class BatchAhead:
    """Looks all tables of all modules up in one exchange, on a thread beside this one.

    Args:
        container: where the tables live.
        calls: of the modules, in the order of the forward pass.
        batch: what the model will be called with.
    """

    def __init__(self, container: StepContainer, calls: Sequence[Call], batch: Any) -> None:
        self._planned = []
        for call in calls:
            arguments, named = call.on(batch)
            agent = call.module.agent
            self._planned.append(
                _Planned(agent, agent.plan(call.module.wanted(*arguments, **named)))
            )
        requests = [request for each in self._planned for request in each.plan.requests]
        self._ahead: LookupAhead = container.look_up_ahead(requests)

    def give(self) -> None:
        """Hands what was looked up to the modules, for the forward pass that comes now.

        Raises:
            SparringError: as `StepContainer.lookup_all`.
        """
        lookups = iter(self._ahead.finish())
        by_agent: dict[int, list[Ahead]] = {}
        for each in self._planned:
            mine = [next(lookups) for _ in each.plan.requests]
            by_agent.setdefault(id(each.agent), []).append(Ahead(each.plan, mine))
        for each in self._planned:
            each.agent.give_ahead(by_agent[id(each.agent)])

    def withdraw(self) -> None:
        """Takes back what modules did not use."""
        for each in self._planned:
            each.agent.give_ahead(())

    def drop(self) -> None:
        """Its turn will not come."""
        self._ahead.drop()
