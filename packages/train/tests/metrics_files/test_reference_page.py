"""The page of metrics has every metric, with its unit."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sparring.contracts.storage.tiers import TierCounters
from sparring.engine.checkpoint.save_manager import SaveCounters
from sparring.engine.lookup.prefetch_thread import PrefetchCounters
from sparring.engine.state import StepCounters
from sparring.exchange.messenger import ExchangeCounters, WireBytes
from sparring_train.live.publisher_process import PublishCounters
from sparring_train.quality import predictions as metrics
from sparring_train.run.result import TrainResult

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/metrics.md"
CLASSES = (
    TrainResult,
    StepCounters,
    SaveCounters,
    PrefetchCounters,
    ExchangeCounters,
    WireBytes,
    TierCounters,
    PublishCounters,
)
WITHOUT_UNIT = {"rank", "extra", "backend", "is_terminated"}
"""Not numbers."""

NAMES = sorted(
    {each.name for every in CLASSES for each in fields(every)}
    | {name for name in metrics.__all__ if name.islower()}
)


@pytest.mark.parametrize("name", NAMES)
def test_metric_is_on_the_page_with_its_unit(name: str) -> None:
    lines = re.findall(rf"^\| `{name}` \| (.*?) \| (.+?) \|$", PAGE.read_text(), re.M)
    assert lines, f"docs/reference/metrics.md has no line for {name}"
    for unit, meaning in lines:
        assert meaning.strip()
        assert (unit.strip() == "–") == (name in WITHOUT_UNIT), f"{name} has no unit"


def test_no_class_of_counters_is_omitted() -> None:
    sources = ROOT.glob("packages/*/src/**/*.py")
    found = {
        name
        for path in sources
        for name in re.findall(r"^class (\w+Counters)\b", path.read_text(), re.M)
    }
    # The counters of a cached table are on the page of the lookup service, with their names there.
    listed = {each.__name__ for each in CLASSES} | {"CacheCounters"}
    assert found == listed - {"TrainResult", "WireBytes"}


def test_page_lists_the_tier_counters_in_their_order() -> None:
    section = PAGE.read_text().split("## Tiers")[1]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert listed == [each.name for each in fields(TierCounters)]
