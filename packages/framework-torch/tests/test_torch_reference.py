"""The reference page of the PyTorch adapter lists each public name and its arguments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import sparring_torch

PAGE = (Path(__file__).parents[3] / "docs/reference/torch.md").read_text()
WORDS = set(re.findall(r"\w+", "".join(re.findall(r"`[^`]*`", PAGE))))
ENUMS = ("DataType", "PoolingType")
NAMES = [name for name in sparring_torch.__all__ if not name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_each_name_with_its_arguments(name: str) -> None:
    value = getattr(sparring_torch, name)
    arguments = {each.name for each in value} if name in ENUMS else set(_arguments(value))
    assert {name, *arguments} - WORDS == set()


def test_the_page_gives_each_config_its_defaults() -> None:
    for name, parameter in inspect.signature(sparring_torch.EmbeddingBagConfig).parameters.items():
        assert re.search(rf"^\| .*`{name}`", PAGE, re.M), name
        if isinstance(parameter.default, (str, int)):
            line = next(line for line in PAGE.splitlines() if re.match(rf"\| .*`{name}`", line))
            assert str(parameter.default) in line


def _arguments(value: object) -> list[str]:
    return list(inspect.signature(value).parameters)  # type: ignore[arg-type]
