"""The plugin that pytest loads where sparring-testing is installed (entry point group ``pytest11``).

It adds one option and the fixture `table_device`, and lets pytest explain failed assertions inside
the kit.
"""

from __future__ import annotations

import pkgutil

import pytest

import sparring_testing as testing
from sparring_testing.devices import list_test_devices, why_unavailable

# By name, because the package itself, this module and what it imports are imported already.
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
        help="repeat a run of the storage kit with the seed that a failed test printed",
    )


@pytest.fixture(params=list_test_devices())
def table_device(request: pytest.FixtureRequest) -> str:
    """The device of the tables of a test; see `sparring_testing.devices`."""
    device: str = request.param
    reason = why_unavailable(device)
    if reason is not None:
        pytest.skip(reason)
    return device
