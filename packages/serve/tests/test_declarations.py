"""Declarations of tables that learn: tables have the settings of core, and errors name their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring import Expiry, Frequency, Normal, Uniform
from sparring.errors import ConfigError
from sparring_cli import read_document
from sparring_serve.config import RENAMED_KEYS, ServingConfig, read_serving_config


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


_FORMER = """
server: {most_ids: 9, most_bytes: 70000, most_bytes_in_flight: 80000,
         most_deadline_seconds: 3, most_queries: 7, most_k: 5}
client: {most_call_bytes: 5000}
parameters: {tables: {user: {dim: 4}}, most_clients: 6}
"""


def test_files_with_former_keys_load(tmp_path: Path) -> None:
    former, current = tmp_path / "former.yaml", tmp_path / "current.yaml"
    former.write_text(_FORMER)
    text = _FORMER
    for old, new in RENAMED_KEYS.items():
        text = text.replace(f"{old.partition('.')[2]}:", f"{new.partition('.')[2]}:")
    assert "most" not in text
    current.write_text(text)
    assert read_serving_config(former) == read_serving_config(current)
    assert read_serving_config(former).server.max_bytes_in_flight == 80_000


def test_overrides_with_former_keys_change_the_current_key(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    for key in ("most_ids", "max_ids"):
        path.write_text(f"server: {{{key}: 9}}")
        for override in ("server.most_ids=5", "server.max_ids=5"):
            assert read_serving_config(path, [override]).server.max_ids == 5


def test_a_wrong_value_of_a_former_key_is_reported_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("client: {}\nserver:\n  most_ids: 0\n")
    with pytest.raises(ConfigError, match=r"s\.yaml:3:\d+: server\.max_ids"):
        read_serving_config(path)


def test_a_former_key_next_to_its_current_key_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("server: {most_ids: 9, max_ids: 8}")
    with pytest.raises(ConfigError, match=r"s\.yaml:1:10: unknown key 'most_ids' in server"):
        read_serving_config(path)
