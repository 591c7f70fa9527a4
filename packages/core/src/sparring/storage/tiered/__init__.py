"""A stack of storages that is a storage: the hottest rows lie in the first tier.

    storage.py       the stack: find falls through, writes go to the first tier and down from there
    stacking.py      which storages can be stacked, and what their stack can do
    tier.py          one tier, with its Bloom filter, and what it knows of its rows
    holding.py       rows on their way from one tier to the next
    descending.py    how they go down: what fails is tried again, and a write waits for room
    writing_back.py  the last of these ways, beside the steps that follow
    staging.py       rows that were found below and may come up with the next write
    scanning.py      all rows, each key once
    fronting.py      the first tier's native update and visit, with the stack around them
    options.py       what users may set; budgets in bytes
    counters.py      what is counted of each tier

``docs/decisions/tiers.md`` says why.
"""

from __future__ import annotations

from sparring.storage.tiered.counters import TierCounters
from sparring.storage.tiered.options import TieredOptions, TierOptions
from sparring.storage.tiered.storage import TieredStorage

__all__ = ["TierCounters", "TierOptions", "TieredOptions", "TieredStorage"]
