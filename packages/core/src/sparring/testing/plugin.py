"""What pytest loads wherever sparring is installed (entry point group ``pytest11``).

It adds one option, and lets pytest explain failed assertions inside the kit.
"""

from __future__ import annotations

import pkgutil

import pytest

from sparring import testing

# By name, because the package itself and this module are imported already.
pytest.register_assert_rewrite(
    *(
        f"{testing.__name__}.{module.name}"
        for module in pkgutil.iter_modules(testing.__path__)
        if module.name != "plugin"
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("sparring").addoption(
        "--sparring-seed",
        type=int,
        default=None,
        help="repeat a run of the storage kit with the seed that a failed test printed",
    )
