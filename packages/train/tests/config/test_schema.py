"""The JSON schema of configurations accepts all files of configs/ and reports typing errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring import make_plugin_manager
from sparring_cli import CONFIG_LIMITS, make_locator, parse_yaml, read_text
from sparring_cli.application import main
from sparring_train.config.schema import config_schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
CONFIGS = Path(__file__).parents[4] / "configs"


def is_run(path: Path) -> bool:
    return path.parent == CONFIGS and "\nmodel:" in path.read_text()


RUNS = sorted(filter(is_run, CONFIGS.glob("*.yaml")))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = config_schema(make_plugin_manager())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def read(path: Path) -> dict[str, Any]:
    text = read_text(str(path), CONFIG_LIMITS)
    return parse_yaml(text, make_locator(str(path))).mapping()


def test_there_are_configurations_to_validate() -> None:
    assert len(RUNS) >= 10


@pytest.mark.parametrize("path", RUNS, ids=lambda each: each.stem)
def test_a_configuration_is_valid(path: Path, validator: Any) -> None:
    assert [each.message for each in validator.iter_errors(read(path))] == []


@pytest.mark.parametrize("change", [{"trainnig": {}}, {"training": {"epochs": "three"}}])
def test_errors_are_found(change: dict[str, Any], validator: Any) -> None:
    assert list(validator.iter_errors(read(CONFIGS / "quickstart.yaml") | change))


def test_the_command_writes_the_schema(tmp_path: Path) -> None:
    assert main(["config", "schema", "--output", str(tmp_path / "run.schema.json")]) == 0
    written = json.loads((tmp_path / "run.schema.json").read_text())
    assert written == json.loads(json.dumps(config_schema(make_plugin_manager())))
