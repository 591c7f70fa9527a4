"""The reference page of collectives matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparring.contracts.options import Options
from sparring.contracts.ranks.collective import MAX_DIMENSIONS, NUM_TAGS, Collective
from sparring.rendezvous.environment import EnvironmentOptions

REFERENCE = (Path(__file__).parents[4] / "docs/reference/collectives.md").read_text()


def test_reference_has_every_operation() -> None:
    for name in vars(Collective):
        # `peer_failure` is only called by backends.
        if not name.startswith("_") and name != "peer_failure":
            assert re.search(rf"^\| .*`{name}[(`]", REFERENCE, re.M), f"{name} is missing"


@pytest.mark.parametrize("options", [EnvironmentOptions])
def test_reference_has_every_option_with_its_default(options: type[Options]) -> None:
    for name, field in options.model_fields.items():
        assert re.search(rf"^\| `{name}` \|.*`{field.default}`", REFERENCE, re.M), name


def test_reference_has_the_numbers_of_the_contract() -> None:
    assert f"from 0 to {NUM_TAGS - 1:,}" in REFERENCE
    assert f"up to {MAX_DIMENSIONS} dimensions" in REFERENCE
