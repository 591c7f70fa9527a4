"""The pytest plugin of sparring-testing (entry point group ``pytest11``).

It adds one option and the fixture `table_device`, and enables detailed messages of failed assertions
in the kit.
"""

from __future__ import annotations

import pkgutil

import pytest

import sparring_testing as testing
from sparring_testing.devices import list_test_devices, why_unavailable

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


@pytest.fixture(params=list_test_devices())
def table_device(request: pytest.FixtureRequest) -> str:
    """Device on which the tables of a test are created; see `sparring_testing.devices`."""
    device: str = request.param
    reason = why_unavailable(device)
    if reason is not None:
        pytest.skip(reason)
    return device
