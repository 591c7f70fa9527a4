"""Deltas of a million rows into ten million while the native server replies to 5,000 calls per second.

A generator in C++ requests 100 random ids per call. Quiet seconds alternate with seconds that start when
a delta is committed. Then calls are sent as fast as possible, while further deltas are committed. Each
row contains numbers from which its key and the version that wrote it follow, so torn rows and mixed
versions are detected in every call.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.measuring import Figure
from benchmarks.programs import build_program
from benchmarks.scale import Scale
from benchmarks.serving_native import PACKAGE, PROGRAM_SETTINGS, TOKEN, serve
from benchmarks.serving_refresh import SHARE, publish_deltas
from sparring_serve.server.native_front_end import EXECUTABLE
from sparring_serve.wire.messages import SERVICE

__all__ = ["compare", "measure"]

TABLE_ROWS, DIM, IDS = 10_000_000, 16, 100
RATE, SECONDS, ROUNDS = 5_000, 4.0, 6
FAST_SECONDS, FAST_ROUNDS = 30.0, 3
"""Together about a million calls."""
LATENCY_BAR = 1.5


@dataclass(frozen=True)
class _Load:
    num_calls: float
    per_second: float
    median: float
    p99: float
    late: float
    errors: float
    torn: float
    mixed: float
    first_step: float
    last_step: float


def measure(scale: Scale) -> list[Figure]:
    """Measures the effect of a refresh on the 99th percentile, and counts wrong replies."""
    if not EXECUTABLE.exists():
        return [Figure("refresh of the native server", "not measured", detail="it was not built")]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        load = build_program("load", PACKAGE, folder / "build", PROGRAM_SETTINGS)
        publish_deltas(folder, scale.rows(TABLE_ROWS), scale.rounds(ROUNDS) + FAST_ROUNDS, DIM)
        return compare(load, folder, scale)


def compare(load: Path, folder: Path, scale: Scale) -> list[Figure]:
    """Returns the figures of published deltas in a folder."""
    rounds, seconds = scale.rounds(ROUNDS), SECONDS if not scale.is_quick else 0.5
    asked = f"rows:{scale.rows(TABLE_ROWS)}:{DIM}:{IDS}:{SHARE}"
    quiet: list[_Load] = []
    refreshed: list[_Load] = []
    fast: list[_Load] = []
    with ExitStack() as closing:
        options = {"poll_seconds": "0.2"}
        server = closing.enter_context(serve(folder, "native", options=options))

        def run(rate: float, duration: float, step: int = 0) -> _Load:
            arguments = [server.address, f"/{SERVICE}/Pull", asked, rate, duration, TOKEN]
            with subprocess.Popen(
                [load, *map(str, arguments)], stdout=subprocess.PIPE, text=True
            ) as process:
                if step:
                    time.sleep(0.2)  # until it is connected
                    _commit(folder, step)
                told, _ = process.communicate()
            return _Load(*map(float, told.split()))

        for step in range(2, rounds + 2):
            quiet.append(run(RATE, seconds))
            refreshed.append(run(RATE, seconds, step))
        for step in range(rounds + 2, rounds + 2 + FAST_ROUNDS):
            fast.append(run(0, 0.5 if scale.is_quick else FAST_SECONDS, step))
    return _figures(quiet, refreshed, fast)


def _commit(folder: Path, step: int) -> None:
    (folder / f"served/.step-{step}").rename(folder / f"served/step-{step}")


def _figures(
    quiet: Sequence[_Load], refreshed: Sequence[_Load], fast: Sequence[_Load]
) -> list[Figure]:
    for each in (*refreshed, *fast):
        if each.last_step != each.first_step + 1:
            raise AssertionError(
                f"replies have the steps {each.first_step:.0f} to {each.last_step:.0f}: the load is "
                "shorter than a refresh"
            )
    before, during = (median(each.p99 for each in some) for some in (quiet, refreshed))
    late = [median(each.late for each in some) / 1e3 for some in (quiet, refreshed)]
    # All calls are checked.
    made = (*quiet, *refreshed, *fast)
    wrong = [sum(getattr(each, what) for each in made) for what in ("errors", "torn", "mixed")]
    num_calls = sum(each.num_calls for each in made)
    shown = ", ".join(f"{each.p99 / 1e3:.2f}" for each in refreshed)
    rate = median(each.per_second for each in fast)
    return [
        Figure(
            f"p99 in the {SECONDS:g} s after a commit, at {RATE:,} calls/s, compared with quiet "
            "seconds",
            f"{during / before:.2f} x", f"<= {LATENCY_BAR:g}", during <= LATENCY_BAR * before,
            f"{before / 1e3:.2f} ms quiet; {shown} ms after commits; the generator was {late[0]:.2f} "
            f"and {late[1]:.2f} ms late",
        ),
        Figure(
            "errors, torn rows, mixed versions", "{:.0f}, {:.0f}, {:.0f}".format(*wrong), "0",
            not any(wrong), f"{num_calls:,.0f} calls, the last at {rate:,.0f} calls/s",
        ),
    ]  # fmt: skip
