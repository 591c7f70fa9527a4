"""The clients of a run: `python -m soak.clients lookups|pushes CONFIG OUTPUT`.

Each writes a line of JSON per second, and ends at SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from reliability.stream_servers import rows_hash

from soak.feed import NUM_ITEMS, NUM_USERS
from sparring.errors import SparringError
from sparring_serve import LookupClient, ParameterClient

__all__ = ["LOOKUP_KEYS", "NUM_PUSHED", "pushed_keys"]

LOOKUP_KEYS = {
    "user": np.arange(0, NUM_USERS, 61, dtype=np.int64),
    "item": np.arange(0, NUM_ITEMS, 31, dtype=np.int64),
}
NUM_PUSHED = 2_000
"""Number of keys that pushes update."""
DIM = 8
_LOOKUP_PAUSE_SECONDS = 0.02
_PUSH_PAUSE_SECONDS = 0.05
_KEYS_PER_PUSH = 50
_MAX_SEEN = 20
"""Versions that are not recorded again; more than servers keep."""
_PUSH_SECONDS = 120.0


def pushed_keys(number: int) -> Any:
    """Returns the keys of a push."""
    draw = np.random.default_rng(number)
    return draw.choice(NUM_PUSHED, _KEYS_PER_PUSH, replace=False)


def main(kind: str, config: str, output: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with Path(output).open("a", buffering=1) as file:
        {"lookups": _look_up, "pushes": _push}[kind](config, file, ended)


def _look_up(config: str, output: TextIO, ended: threading.Event) -> None:
    """Records each version with the hash of its rows once, and counts of each second."""
    seen: deque[tuple[int, str]] = deque(maxlen=_MAX_SEEN)
    counts: Counter[str] = Counter()
    newest, age, slowest, second = -1, 0.0, 0.0, int(time.time())
    with LookupClient.from_config(config) as client:
        while not ended.wait(_LOOKUP_PAUSE_SECONDS):
            begin = time.monotonic()
            try:
                reply = client.pull(LOOKUP_KEYS)
            except SparringError as error:
                counts[f"error {type(error).__name__}"] += 1
                with suppress(ValueError):
                    output.write(
                        json.dumps({"error": str(error)[:300], "time": time.time()}) + "\n"
                    )
            else:
                slowest = max(slowest, time.monotonic() - begin)
                if not reply.is_complete:
                    counts["flagged"] += 1
                elif len(reply.versions) != 1:
                    counts["mixed"] += 1
                else:
                    counts["complete"] += 1
                    newest, age = reply.versions[0].step, reply.age_seconds
                    found = {name: rows[reply.found[name]] for name, rows in reply.rows.items()}
                    keys = {name: each[reply.found[name]] for name, each in LOOKUP_KEYS.items()}
                    version = (newest, rows_hash(keys, found))
                    if version not in seen:
                        seen.append(version)
                        output.write(json.dumps({"step": newest, "rows": version[1]}) + "\n")
            if int(time.time()) != second:
                line = {"time": time.time(), "counts": counts, "served_step": newest}
                output.write(json.dumps({**line, "age": age, "slowest": slowest}) + "\n")
                counts.clear()
                slowest, second = 0.0, int(time.time())
        output.write(json.dumps({"time": time.time(), "counts": counts}) + "\n")


def _push(config: str, output: TextIO, ended: threading.Event) -> None:
    """Pushes ones, which subtract one from rows of zeros; records which pushes were acknowledged."""
    number, unknown, second = 0, [], int(time.time())
    with ParameterClient.from_config(config) as client:
        while not ended.wait(_PUSH_PAUSE_SECONDS):
            gradients = np.ones((_KEYS_PER_PUSH, DIM), np.float32)
            try:
                keys = pushed_keys(number)
                client.push(
                    {"item": (keys, gradients)}, wait="applied", deadline_seconds=_PUSH_SECONDS
                )
            except SparringError as error:
                unknown.append(number)
                line = {"time": time.time(), "unknown": number, "error": f"{error}"[:500]}
                output.write(json.dumps(line) + "\n")
            number += 1
            if int(time.time()) != second:
                second = int(time.time())
                output.write(json.dumps({"time": time.time(), "pushes": number}) + "\n")
        output.write(json.dumps({"time": time.time(), "pushes": number, "is_end": True}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
