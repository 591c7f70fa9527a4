"""A stored run of the kinds `criteo` and `movielens` is the same run with `kind: table`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.errors import ConfigError
from sparring_train.config.reading.former_kinds import upgrade_sections
from sparring_train.config.reading.loader import load_config
from sparring_train.config.run_type import run_type
from sparring_train.run.same_run import describe_run

CONFIGS = Path(__file__).parents[4] / "configs"
FORMER: dict[str, tuple[str, dict[str, Any]]] = {
    "criteo": ("train.txt", {"test_path": None, "validation_path": None}),
    "movielens": ("ratings.csv", {}),
    "two-towers": ("ratings.csv", {}),
}


def former(name: str, now: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """What a run with the former section of a configuration saved."""
    kind = "criteo" if name == "criteo" else "movielens"
    path, more = FORMER[name]
    data = {"kind": kind, "path": str(CONFIGS / path), "test_fraction": 0.1, **more}
    data |= {"validation_fraction": None, "batch_size": now["data"]["batch_size"], **keys}
    model = dict(now["model"])
    if name != "criteo":
        model |= {key: key if name == "movielens" else [key] for key in ("user", "item")}
    return {**now, "data": data, "model": model}


@pytest.mark.parametrize("name", FORMER)
def test_a_stored_section_is_upgraded_to_the_current_form(name: str) -> None:
    now = describe_run(load_config(CONFIGS / f"{name}.yaml"))
    sections = upgrade_sections(former(name, now))
    config = run_type().model_validate(
        {key: sections[key] for key in ("seed", "data", "model", "tables", "optimizer")}
    )
    assert describe_run(config) == {**now, "data": {**now["data"], "draw": "position"}}
    assert upgrade_sections(now) == now


def test_a_stored_run_without_a_way_of_drawing_draws_by_position() -> None:
    now = describe_run(load_config(CONFIGS / "criteo.yaml"))
    for draw in ("row", "position", None):
        stored = {**now, "data": {**now["data"], "draw": draw}}
        assert upgrade_sections(stored) == stored
    earlier = {**now, "data": {name: each for name, each in now["data"].items() if name != "draw"}}
    assert upgrade_sections(earlier)["data"]["draw"] == "position"


@pytest.mark.parametrize("name", ["criteo", "movielens"])
def test_random_validation_is_kept(name: str) -> None:
    now = describe_run(load_config(CONFIGS / f"{name}.yaml"))
    sections = upgrade_sections(former(name, now, validation_fraction=0.2))
    way = "fraction" if name == "criteo" else "exact_fraction"
    assert sections["data"]["validation"] == {way: 0.2}


@pytest.mark.parametrize("key", ["test_path", "validation_path"])
def test_files_for_another_part_are_rejected_with_the_new_form(key: str) -> None:
    now = describe_run(load_config(CONFIGS / "criteo.yaml"))
    with pytest.raises(
        ConfigError, match=rf"data\.{key}: day_23.*configs/criteo\.yaml.*files: NAME"
    ):
        upgrade_sections(former("criteo", now, **{key: "day_23"}))
