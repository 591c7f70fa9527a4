"""Compares both servers on random requests, and sends random half-sent calls to the native server.

    python -m fuzz.front_ends [SECONDS] [SEED]

Replies must have the same status and message from both servers, and at the end the native server must
accept as many calls as at the beginning. Coverage is not measured, because it is another process.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from sparring_serve.testing import RawConnection, framed_message
from sparring_serve.testing.front_ends import Folder, call, open_front_end, pull
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, RecommendRequest, ScanRequest
from sparring_serve.wire.open_inference import HEALTH, INFERENCE, InferRequest, InferTensor

_THREADS, _CALLS_PER_THREAD = 2, 16
_DEADLINE_SECONDS = 0.2

_RAW = {"inputs": (InferTensor("ids", "INT64", (1,)),), "raw_input_contents": (bytes(8),)}
_SEEDS: dict[str, bytes] = {
    f"{SERVICE}/Pull": encode(pull(("item", [7, -1]), ("user", [3]), missing=2, version="")),
    f"{SERVICE}/Scan": encode(ScanRequest("item", "", 30, bytes(16))),
    f"{SERVICE}/Recommend": encode(
        RecommendRequest(
            "item", "", np.ones(4, np.float32).tobytes(), 2, bytes(8), b"\1" + bytes(7)
        )
    ),
    f"{INFERENCE}/ModelInfer": encode(InferRequest("item", **_RAW)),
    f"{INFERENCE}/ModelMetadata": b"\x0a\x04item\x12\x011",
    f"{HEALTH}/Check": b"\x0a\x08liveness",
}


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a difference or a lost call was found."""
    seconds = float(arguments[0]) if arguments else 60.0
    draw = random.Random(int(arguments[1]) if len(arguments) > 1 else 1)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        folder.publish(1)
        options = {"threads": _THREADS, "drain_seconds": 0, "max_bytes": 1 << 16}
        with (
            open_front_end("python", folder, **options) as ours,
            open_front_end("native", folder, **options) as native,
            open_front_end(
                "native", folder, **options, max_deadline_seconds=_DEADLINE_SECONDS
            ) as silent,
        ):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for method, seed in _SEEDS.items():
                    content = _mutated(draw, seed)
                    replies = [call(each.address, method, content) for each in (ours, native)]
                    expected, found = (
                        (status, message, metadata.get("sparring-shard-map-bin"))
                        for status, message, metadata, _ in replies
                    )
                    counts[f"{method.rpartition('/')[2]} {found[0]}"] += 1
                    if found != expected:
                        print(f"{method} {content!r}:\n  Python {expected}\n  native {found}")
                        return 1
                _send_partly(draw, silent.address)
                counts["half-sent calls"] += 1
            time.sleep(1 + 2 * _DEADLINE_SECONDS)
            with RawConnection(silent.address) as connection:
                paths = [f"/{SERVICE}/Describe"] * _THREADS * _CALLS_PER_THREAD
                streams = [connection.begin(path) for path in paths]
                statuses = {connection.status(each, 10) for each in streams}
            if statuses != {1}:
                print(f"calls remained: silent calls end with the statuses {statuses}, expected 1")
                return 1
    for name, count in sorted(counts.items()):
        print(f"{name}: {count:,}")
    return 0


def _mutated(draw: random.Random, seed: bytes) -> bytes:
    """Changes, inserts or removes some bytes."""
    content = bytearray(seed)
    for _ in range(draw.randrange(4)):
        place = draw.randrange(len(content) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            content[place : place + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            content[place:place] = draw.randbytes(draw.choice((1, 2, 9, 11)))
        elif kind == 2:
            del content[place : place + draw.randrange(9)]
        else:
            content[place:place] = content[draw.randrange(len(content) + 1) :]
    return bytes(content)


def _send_partly(draw: random.Random, address: str) -> None:
    """Begins some calls, and sends parts of their messages or invalid frames."""
    with RawConnection(address) as connection, suppress(ConnectionError):
        for _ in range(draw.randrange(1, 9)):
            method, seed = draw.choice(list(_SEEDS.items()))
            timeout = draw.choice(("", "1m", "100m", "9S", "no number"))
            stream = connection.begin(f"/{method}", timeout=timeout, is_last=draw.random() < 0.1)
            message = framed_message(_mutated(draw, seed))
            kind = draw.randrange(5)
            if kind == 0:
                connection.send(stream, message, is_last=True)
            elif kind == 1:
                connection.send(stream, message[: draw.randrange(len(message))])
            elif kind == 2:
                connection.cancel(stream)
            elif kind == 3:
                connection.send_frame(
                    draw.randrange(12), draw.randrange(256), stream, draw.randbytes(9)
                )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
