"""The suite that the author of a collective inherits."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from sparring_testing.collectives.collective_failures import FailureTests
from sparring_testing.collectives.collective_messages import MessageTests
from sparring_testing.collectives.collective_operations import OperationTests
from sparring_testing.guard import find_violations

__all__ = ["CollectiveTests", "RunRanks"]


class RunRanks(Protocol):
    """Runs ``body(collective, *arguments)`` on each of `world_size` ranks.

    Returns what it returned, in the order of ranks. Each call gives the ranks a fresh collective
    with this deadline, closes it afterwards, and raises if `body` raised. `body` is a function of
    a module of `sparring_testing`, so it can be pickled; so can arguments and results.
    """

    def __call__(
        self, world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 10.0
    ) -> list[Any]: ...


class CollectiveTests(MessageTests, OperationTests, FailureTests):
    """Every promise of the collective contract. Inherit it, and say how to run ranks.

    Required: the fixture `run_ranks`. `RankProcesses` runs ranks as processes.
    The environment variable ``SPARRING_KIT_LARGE_BYTES`` sets the size of the largest message, for
    machines with memory for more than 64 MiB; a rank needs twice as much.
    """

    @pytest.fixture
    def run_ranks(self) -> RunRanks:
        """Required: a callable as `RunRanks` describes, for worlds of 1, 2 and 3 ranks."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture run_ranks: a callable "
            "(world_size, body, *arguments, deadline_seconds=10.0) that runs body on each rank"
        )

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), CollectiveTests)
        assert not violations, "\n".join(violations)
