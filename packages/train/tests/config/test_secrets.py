"""No password in a configuration is ever printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import ConfigError, InvalidArgumentError
from sparring.runtime.secrets import find_secrets
from sparring.storage.open import open_storage
from sparring_cli.application import main
from sparring_train.config.reading.loader import load_config
from sparring_train.config.run import StorageConfig
from sparring_train.config.run_type import run_type

SECRET = "hunter2hunter2"
BASE = """\
data: {kind: table, path: ratings.csv, label: rating, categorical: [user, item], required: [user, item]}
model: {kind: matrix_factorization}
"""


WHERE: dict[str, str] = {
    "a URL in a tier": "storage: {{backend: tiered, options: {{tiers: [hkv, {{backend: redis, "
    'options: {{url: "redis://me:{secret}@h:1"}}}}]}}}}',
    "a URL in a list": 'storage: {{options: {{hosts: [a, "redis://me:{secret}@h:1"]}}}}',
    "a password of a tier": "storage: {{backend: tiered, options: {{tiers: [hkv, {{backend: redis, "
    "options: {{password: {secret}}}}}]}}}}",
    "a password": "storage: {{backend: redis, options: {{password: {secret}}}}}",
    "a password that is a number": "storage: {{backend: redis, options: {{password: 1234567}}}}",
    "a password before a host": 'storage: {{backend: redis, options: {{host: "me:{secret}@h"}}}}',
    "a password for its variable": "storage: {{backend: redis, options: "
    '{{password_environment: "{secret}!"}}}}',
    "the folder of snapshots": 'snapshots: {{url: "s3://key:{secret}@bucket"}}',
    "the file of metrics": 'metrics: {{path: "s3://key:{secret}@bucket/m"}}',
    "the report": 'report: {{path: "ftp://key:{secret}@host/r"}}',
    "the rendezvous": "rendezvous: {{backend: redis, options: {{token: {secret}}}}}",
    "a key given twice": 'storage: {{options: {{url: "redis://:{secret}@h", url: a}}}}',
    "a value of another type": "storage: {{options: {{password: !!int {secret}}}}}",
    "a tag": "storage: {{options: {{password: !vault {secret}}}}}",
    "something else is wrong": "training: {{epochs: 0, colour: 1}}\n"
    'snapshots: {{url: ["s3://k:{secret}@b"]}}',
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("command", ["show", "check"])
def test_a_secret_in_a_configuration_is_rejected_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, command: str
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(BASE + WHERE[where].format(secret=SECRET) + "\n")
    assert main(["config", command, str(config)]) != 0
    printed = capsys.readouterr()
    assert f"{config}:3:" in printed.err or f"{config}:4:" in printed.err
    assert SECRET not in printed.err + printed.out
    assert "1234567" not in printed.err + printed.out
    with pytest.raises(ConfigError) as refused:
        load_config(config)
    assert SECRET not in str(refused.value) + repr(refused.value.details)


@pytest.mark.parametrize(
    "override",
    [
        f"storage.options.password={SECRET}",
        f"storage.options.url=redis://:{SECRET}@h",
        f"storage.options.host=me:{SECRET}@h",
        f"storage.options={{password: {SECRET}}}",
        f"storage.options={{password: {SECRET}",
        f"storage.options={{url: 'redis://{SECRET}@h', url: 2}}",
        f"storage.options.password_environment={SECRET}!",
        f"snapshots.url=s3://key:{SECRET}@b",
        f"snapshots.password={SECRET}",
        f"password:{SECRET}",
        f"training.epochs=token {SECRET}",
    ],
)
def test_a_secret_in_an_override_is_rejected_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(BASE)
    assert main(["config", "show", str(config), override]) != 0
    printed = capsys.readouterr()
    assert "override " in printed.err
    assert SECRET not in printed.err + printed.out


def test_a_secret_is_named_with_its_place(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        BASE + "storage:\n  backend: tiered\n  options:\n    tiers:\n      - hkv\n"
        f"      - backend: redis\n        options:\n          password: {SECRET}\n"
    )
    with pytest.raises(ConfigError, match=r"run\.yaml:10:21: storage\.options\.tiers\.1\.options"):
        load_config(config)


@pytest.mark.parametrize(
    "make",
    [
        lambda: run_type()(
            data={"kind": "table", "path": "r", "categorical": ["user"]},  # type: ignore[arg-type]
            model={"kind": "matrix_factorization"},  # type: ignore[arg-type]
            snapshots={"url": f"s3://key:{SECRET}@b"},  # type: ignore[arg-type]
        ),
        lambda: StorageConfig(backend="redis", options={"tiers": [{"password": SECRET}]}),
        lambda: StorageConfig(backend="redis", options={"password": SECRET}, colour=SECRET),  # type: ignore[call-arg]
    ],
)
def test_sections_created_in_code_neither_contain_nor_print_a_secret(make: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        make()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"password": SECRET},
        {"capacity": f"redis://:{SECRET}@h"},
        {"capacity": ["a", f"redis://:{SECRET}@h"]},
        {"colour": {"token": SECRET}},
    ],
)
def test_errors_of_rejected_options_do_not_repeat_a_secret(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        open_storage("memory", TableConfig("item", 2), **options)
    assert SECRET not in str(refused.value) + repr(refused.value.details)


def test_the_url_of_a_snapshot_contains_no_secret() -> None:
    url = f"s3://key:{SECRET}@bucket/run"
    with StepContainer() as container:
        for call in (container.save, container.load):
            with pytest.raises(InvalidArgumentError, match="password") as refused:
                call(url)
            assert SECRET not in str(refused.value) + repr(refused.value.details)


def test_locations_of_secrets_are_kept() -> None:
    options = {
        "password_environment": "FILMS_PASSWORD",
        "password_file": "/run/secrets/films",
        "tls_key_file": "key.pem",
        "tiers": ["hkv", {"backend": "redis", "options": {"url": "redis://cache:6379"}}],
    }
    assert not list(find_secrets(options))
