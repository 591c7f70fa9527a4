"""The reference page of update methods matches the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.updates.builtin import BUILTIN_METHODS

PAGE = (Path(__file__).parents[4] / "docs/reference/updates.md").read_text()
STATE = {"none": lambda _: 0, "dim": lambda d: d, "1": lambda _: 1, "2·dim": lambda d: 2 * d}
STATE["dim + 1"] = lambda d: d + 1


def rows_of(method: str) -> list[list[str]]:
    """The cells of the table rows that begin with the method's name."""
    lines = [line for line in PAGE.splitlines() if line.startswith(f"| `{method}` |")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("name", BUILTIN_METHODS)
def test_the_page_gives_each_method_its_state_and_hyperparameters(name: str) -> None:
    method = BUILTIN_METHODS[name]()
    what, own = rows_of(name)
    for dim in (1, 7):
        assert STATE[what[1]](dim) == method.state_width(dim)
    shared = HyperParameters.model_fields
    expected = set()
    for field, information in method.hyperparameters.model_fields.items():
        default = information.default
        if field in shared and default == shared[field].default:
            continue
        written = str(default).lower() if isinstance(default, bool) else f"{default:g}"
        expected.add(f"`{field}` {written}")
    assert set(own[1].split(", ")) == expected


def test_the_page_names_no_other_method() -> None:
    named = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `")}
    assert named - set(BUILTIN_METHODS) == set(HyperParameters.model_fields) - {"lr"}
