"""The reference page has every key, metric and method, as the sources say."""

from __future__ import annotations

import re
from pathlib import Path

from sparring_serve import LookupService, read_serving_config
from sparring_serve.metrics import HELP
from sparring_serve.reference import reference_tables
from sparring_serve.refusal import Status
from sparring_serve.server.grpc_methods import Methods, table_of_methods

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/lookup-service.md").read_text()


def test_the_page_has_every_key() -> None:
    assert reference_tables() in PAGE, "run: python -m sparring_serve.reference"


def test_the_page_has_every_metric_and_no_other() -> None:
    assert set(re.findall(r"`sparring_serving_(\w+)`", PAGE)) == set(HELP)
    assert all(meaning in PAGE for meaning in HELP.values())


def test_the_page_has_every_status_that_is_answered() -> None:
    assert {each.value for each in Status if f"`{each.value}`" not in PAGE} == set()


def test_the_page_has_every_method_of_the_port(service: LookupService) -> None:
    methods = Methods(service, None)  # type: ignore[arg-type]
    names = {path.rpartition("/")[2] for path in table_of_methods(methods)}
    assert {"Pull", "Refresh", "Check", "ModelInfer"} <= names
    assert {each for each in names if not re.search(rf"\b{each}\b", PAGE)} == set()


def test_the_config_of_ours_loads() -> None:
    config = read_serving_config(ROOT / "configs/serving.yaml")
    assert config.shards == (("127.0.0.1:7433",),)
