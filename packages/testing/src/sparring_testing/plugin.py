"""The pytest plugin of sparring-testing (entry point group ``pytest11``).

It adds one option, the fixture `table_device` and the fixtures of `sparring_testing.fixtures`, and
enables detailed messages of failed assertions in the kit.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import sparring_testing as testing
from sparring_testing.devices import list_test_devices, why_unavailable

if TYPE_CHECKING:
    from sparring_testing.processes.child_processes import ChildProcesses

pytest_plugins = ["sparring_testing.fixtures.services", "sparring_testing.fixtures.runs"]

# Lists the submodules, because the package itself and this module are already imported.
pytest.register_assert_rewrite(
    *(
        f"{testing.__name__}.{module.name}"
        for module in pkgutil.iter_modules(testing.__path__)
        if module.name not in ("plugin", "devices")
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("sparring").addoption(
        "--sparring-seed",
        type=int,
        default=None,
        help="seed of the storage kit, to repeat a failed test with the seed that it printed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the parameters of kits that set `repeats_are_slow`."""
    seen = set()
    for item in items:
        if getattr(getattr(item, "cls", None), "repeats_are_slow", False):
            test = item.nodeid.partition("[")[0]
            if test in seen:
                item.add_marker("slow")
            seen.add(test)


@pytest.fixture(params=list_test_devices())
def table_device(request: pytest.FixtureRequest) -> str:
    """Device on which the tables of a test are created; see `sparring_testing.devices`."""
    device: str = request.param
    reason = why_unavailable(device)
    if reason is not None:
        pytest.skip(reason)
    return device


@pytest.fixture
def fake_gpus() -> Any:
    """The imitation of NCCL and of the driver, without GPUs in use."""
    imitation: Any = pytest.importorskip(
        "sparring_nccl.testing", reason="sparring-nccl is not installed"
    )
    fake = imitation.open_fake_nccl()
    fake.library.fake_reset()
    return fake


@pytest.fixture
def child_processes() -> Iterator[ChildProcesses]:
    """Starts processes, and kills them at the end of the test."""
    # Imported on demand, because pytest rewrites the assertions of modules that are not imported yet.
    from sparring_testing.processes.child_processes import ChildProcesses

    made = ChildProcesses()
    yield made
    made.end()
