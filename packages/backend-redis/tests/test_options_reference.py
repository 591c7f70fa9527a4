"""The reference page has every option, with its default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparring_redis.options import RedisOptions, RedisRendezvousOptions

PAGE = Path(__file__).parents[3] / "docs/reference/redis.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?:`(?P<default>[^`]*)`)? ?\| \S", re.M)


@pytest.mark.parametrize("model", [RedisOptions, RedisRendezvousOptions])
def test_every_option_is_on_the_page_with_its_default(model: type[RedisOptions]) -> None:
    found = {row["name"]: row["default"] for row in ROW.finditer(PAGE.read_text())}
    for name, field in model.model_fields.items():
        assert name in found, f"{PAGE.name} has no row for {name}"
        default = None if field.default is None else str(field.default)
        assert found[name] == default, f"{PAGE.name} has another default of {name}"


def test_the_page_has_no_unknown_option() -> None:
    options = PAGE.read_text().partition("## The storage\n")[0]
    known = RedisOptions.model_fields.keys() | RedisRendezvousOptions.model_fields.keys()
    assert {row["name"] for row in ROW.finditer(options)} == known
