"""The reference page and the files in ``configs/`` agree with the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.contracts import get_fields
from sparring_cli import find_shape
from sparring_train.config.reading.loader import load_config
from sparring_train.config.reference import render_reference_page
from sparring_train.config.run_type import run_type

REPOSITORY = Path(__file__).parents[4]
# Files of plans and of a lookup service are not runs; the tests of their packages load them.
CONFIGS = sorted(
    each
    for each in (REPOSITORY / "configs").glob("*.yaml")
    if each.name not in ("serving.yaml", "parameters.yaml", "followers.yaml")
)


def test_the_reference_page_is_up_to_date() -> None:
    page = REPOSITORY / "docs/reference/config.md"
    assert page.read_text() == render_reference_page(), (
        f"run: python -m sparring_train.config.reference > {page.relative_to(REPOSITORY)}"
    )


def test_every_key_is_described() -> None:
    waiting: list[type[Any]] = [run_type()]
    while waiting:
        model = waiting.pop()
        for name, field in get_fields(model).items():
            assert field.description or name == "kind", f"{model.__name__}.{name}"
            shape = find_shape(field.annotation)
            waiting += shape.models.values()
            if shape.items is not None:
                waiting += find_shape(shape.items).models.values()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_our_configs_load(path: Path) -> None:
    load_config(path)


def test_the_configs_in_the_readme_exist() -> None:
    assert {"quickstart.yaml", "movielens.yaml", "criteo.yaml"} <= {path.name for path in CONFIGS}


def test_the_page_of_collectives_has_the_deadline() -> None:
    page = (REPOSITORY / "docs/reference/collectives.md").read_text()
    assert f"deadline_seconds: {run_type().model_fields['deadline_seconds'].default:g}" in page
