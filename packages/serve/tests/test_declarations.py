"""Declarations of tables that learn: tables have the settings of core, and errors name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring import Expiry, Frequency, Normal, Uniform
from sparring.errors import ConfigError
from sparring_cli import read_document
from sparring_serve.config import ServingConfig


def read(folder: Path, settings: str) -> ServingConfig:
    path = folder / "s.yaml"
    path.write_text(f"parameters:\n  tables:\n    user:\n      dim: 4\n      {settings}\n")
    return read_document(str(path)).as_model(ServingConfig)


def test_a_declaration_has_the_settings_of_core(tmp_path: Path) -> None:
    settings = "{kind: normal, mean: 1}\n      admission: {kind: frequency, k: 2}"
    given = f"initializer: {settings}\n      expire: {{after_steps: 3}}"
    parameters = read(tmp_path, given).parameters
    assert parameters is not None
    table = parameters.tables["user"].table("user")
    assert (table.initializer, table.admission) == (Normal(1.0), Frequency(2))
    assert table.expire == Expiry(3)
    plain = read(tmp_path, "seed: 3").parameters
    assert plain is not None
    assert plain.tables["user"].table("user").initializer == Uniform()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("initializer: {kind: normal, stdev: 1}", "initializer: .*did you mean 'stddev'"),
        ("initializer: gauss", "initializer: .*'gauss' is unknown; choose one of zeros"),
        ("admission: {kind: frequency, k: 0}", "admission: .* a whole number from 1 .* found 0"),
        (
            "expire: {after_days: -1}",
            r"expire\.after_days is wrong \(found -1, expected .*above 0\)",
        ),
        ("expire: {}", "expire: .*give after_steps or after_days"),
    ],
)
def test_a_wrong_setting_is_named_with_its_line(
    settings: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"s\.yaml:5:\d+: parameters\.tables\.user\.{message}"):
        read(tmp_path, settings)
