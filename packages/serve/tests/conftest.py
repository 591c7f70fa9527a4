"""Tables in memory, and services over them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring_serve import LookupService, ShardPosition, ShardReplicas
from sparring_serve.server import native_front_end
from sparring_serve.testing import MemoryTables
from sparring_serve.testing.front_ends import Folder, FrontEnd, open_front_end

ITEM, USER = TableConfig("item", 4, seed=3), TableConfig("user", 2)


def rows_of_step(step: int) -> dict[str, dict[int, list[float]]]:
    """Rows in which every element is the step."""
    return {
        "item": {key: [step, key, -key, 0.5] for key in range(100)},
        "user": {key: [step, key] for key in range(0, 100, 2)},
    }


NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        not native_front_end.EXECUTABLE.exists(),
        reason="the native server was not built: install libgrpc++-dev and pkg-config",
    ),
)
KINDS = ["python", NATIVE]
"""Both servers of the role inference."""

Serve = Callable[..., FrontEnd]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.publish(1)
    return made


@pytest.fixture
def open_servers(closing: ExitStack) -> Serve:
    """Starts servers: takes the arguments of `open_front_end`."""
    return lambda *arguments, **options: closing.enter_context(
        open_front_end(*arguments, **options)
    )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The server with which a test runs: it runs with both."""
    name: str = request.param
    return name


@pytest.fixture
def serve(kind: str, folder: Folder, open_servers: Serve) -> Serve:
    """Starts servers of one kind over `folder`."""
    return lambda *arguments, **options: open_servers(kind, folder, *arguments, **options)


MakeTables = Callable[[], MemoryTables]


@pytest.fixture
def make_tables() -> MakeTables:
    return lambda: MemoryTables([ITEM, USER], rows_of_step(1))


@pytest.fixture
def tables(make_tables: MakeTables) -> MemoryTables:
    return make_tables()


@pytest.fixture
def service(tables: MemoryTables) -> LookupService:
    return LookupService(tables, ShardPosition(ShardReplicas((("a:1",),))), clock=lambda: 10.0)


@pytest.fixture
def ids() -> np.ndarray:
    """Ids with and without rows, some of them repeated."""
    return np.array([7, -1, 7, 99, 100, 2**63 - 1, -(2**63), 0], np.int64)
