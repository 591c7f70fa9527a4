"""The reference page has every key, metric and method of the sources."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sparring.contracts import partition
from sparring_serve import LookupService, ShardReplicas, read_serving_config
from sparring_serve.metrics import HELP
from sparring_serve.reference import reference_tables
from sparring_serve.server.grpc_methods import Methods, make_method_table
from sparring_serve.status import Status

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
    names = {path.rpartition("/")[2] for path in make_method_table(methods)}
    assert {"Pull", "Refresh", "Check", "ModelInfer"} <= names
    assert {each for each in names if not re.search(rf"\b{each}\b", PAGE)} == set()


def test_the_page_has_the_partitions_of_ten_keys() -> None:
    row = re.compile(r"^\| `(-?\d+)` \| `0x(\w{16})` \| (\d+) \| (\d) \|$", re.M)
    found = [
        (int(key), int(bits, 16), int(of), int(shard)) for key, bits, of, shard in row.findall(PAGE)
    ]
    assert len({key for key, *_ in found}) == 10
    keys = np.array([key for key, *_ in found], np.int64)
    assert {2**63 - 1, -(2**63), 0, -1} <= set(keys.tolist())
    assert [of for _, _, of, _ in found] == partition(keys).tolist()
    assert [bits >> 52 for _, bits, _, _ in found] == partition(keys).tolist()
    shards = ShardReplicas((("a:1",), ("b:1",), ("c:1",)))
    assert [shard for *_, shard in found] == shards.shard_of(keys).tolist()


def test_our_config_loads() -> None:
    config = read_serving_config(ROOT / "configs/serving.yaml")
    assert config.shards == (("127.0.0.1:7433",),)
