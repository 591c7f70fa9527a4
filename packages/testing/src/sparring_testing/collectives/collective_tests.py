"""The conformance kit for collectives."""

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

    Returns the results of `body`, ordered by rank. Each call creates a collective with this deadline on
    each rank, closes it afterwards, and raises an error if `body` raised one. `body` is a function of a
    module of `sparring_testing`. It, its arguments and its results can be pickled.
    """

    def __call__(
        self, world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 10.0
    ) -> list[Any]: ...


class CollectiveTests(MessageTests, OperationTests, FailureTests):
    """Tests every promise of the collective contract.

    A subclass must define the fixture `run_ranks`; `RankProcesses` can run the ranks as processes. The
    environment variable ``SPARRING_KIT_LARGE_BYTES`` sets the size of the largest message (default
    64 MiB); each rank needs twice that much memory. ``SPARRING_KIT_MESSAGES`` sets the number of tiny
    messages (default 100,000).
    """

    @pytest.fixture
    def run_ranks(self) -> RunRanks:
        """Required: a callable of the type `RunRanks` that supports 1, 2 and 3 ranks."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture run_ranks: a callable "
            "(world_size, body, *arguments, deadline_seconds=10.0) that runs body on each rank"
        )

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), CollectiveTests)
        assert not violations, "\n".join(violations)
