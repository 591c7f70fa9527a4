"""A run on a stream closes its gate when labels are inverted, and publishes nothing after that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

sparring_packed = pytest.importorskip("sparring_packed", reason="pip install sparring-packed")
pytest.importorskip("sparring_serve", reason="pip install sparring-serve")
torch = pytest.importorskip("torch", reason='pip install "sparring[torch]"')

from sparring import make_plugin_manager
from sparring.errors import ConfigError
from sparring_train.pytorch.trainer import train

from .stream_runs import Events, Quiet

BEGIN = 1_700_000_000
GATED = (
    "data.event_time=at",
    "metrics.window_seconds=200",
    "publish.gate={min_events: 100, warm_up_windows: 10, false_alarms_per_day: 0.1}",
)


class Told(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, text: str) -> None:
        self.lines.append(text)


def write_events(folder: Path, count: int, first_bad: int, end: int | None = None) -> str:
    """Writes events with one second between them. Labels are inverted from `first_bad` to `end`."""
    random = np.random.default_rng(5)
    items = random.integers(0, 20, count)
    labels = (items + (random.random(count) < 0.2)) % 2
    labels[first_bad:end] = 1 - labels[first_bad:end]
    table = pyarrow.table(
        {
            "user": [f"user {n}" for n in random.integers(0, 5, count)],
            "item": items,
            "price": random.normal(size=count),
            "clicked": labels,
            "at": BEGIN + np.arange(count),
        }
    )
    (folder / "events").mkdir()
    parquet.write_table(table, folder / "events/0.parquet")
    return str(folder / "events")


@pytest.mark.long
def test_inverted_labels_close_the_gate(tmp_path: Path) -> None:
    url = write_events(tmp_path, 8000, 7000)
    served = tmp_path / "served"
    words = (
        *GATED,
        f"publish.url={served}",
        "publish.every_seconds=200",
        "optimizer.sparse.lr=0.1",
    )
    told = Told()
    config = Events(tmp_path).config(url, "run", *words)
    train(config, make_plugin_manager(), told)
    [line] = [each for each in told.lines if "the gate closes" in each]
    gate = sparring_packed.read_gate(served)
    assert gate.is_closed
    assert gate.reason in line
    steps = [sparring_packed.read_manifest(each).step for each in served.glob("step-*")]
    # Window 35 contains the first bad events.
    assert all(step <= 1 + 7400 // 64 for step in steps)
    if gate.pin:
        assert sparring_packed.read_manifest(served / gate.pin).step <= 7000 // 64


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("metrics.window_seconds=null",), "metrics.window_seconds: null"),
        (
            ("data={kind: table, path: x.csv, label: clicked, categorical: [user]}",),
            "data.kind: table",
        ),
    ],
)
def test_a_gate_needs_windows(tmp_path: Path, words: Any, found: str) -> None:
    events = Events(tmp_path)
    given = (*GATED, f"publish.url={tmp_path / 'served'}", *words)
    with pytest.raises(ConfigError, match=f"publish.gate.*{found}"):
        events.config("events", "run", *given)
