"""The local collective passes the conformance kit."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.collective.local import LocalGroup
from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.processes.rank_threads import run_ranks


class TestLocalCollective(CollectiveTests):
    @pytest.fixture
    def run_ranks(self) -> Any:
        def run(
            world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 60.0
        ) -> list[Any]:
            return run_ranks(
                world_size, lambda each: body(each, *arguments), deadline_seconds, LocalGroup.join
            )

        return run
