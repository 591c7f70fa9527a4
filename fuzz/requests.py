"""Messages of the lookup service as no client writes them: each is answered or refused.

    python -m fuzz.requests CORPUS [-max_total_time=N]     atheris: libFuzzer over Python
    python -m fuzz.requests --replay CORPUS                once each, so that coverage can be measured

The first byte chooses the message that the others should be. What can be read must be written and read
again as the same; pulls, calls for recommendations and inference requests go on to a service, which may
raise nothing but a `Refusal`; rows and found bits are read as a client reads those of an answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_INSTRUMENTED = [
    "sparring_serve.wire",
    "sparring_serve.service",
    "sparring_serve.inference",
    "sparring_serve.recommendation",
]


def main(arguments: Sequence[str]) -> int:
    """Fuzzes until the time is over, or replays."""
    if arguments[:1] == ["--replay"]:
        feed = make_target()
        for path in sorted(Path(arguments[1]).iterdir()):
            feed(path.read_bytes())
        return 0
    import atheris

    with atheris.instrument_imports(include=_INSTRUMENTED):
        feed = make_target()
    atheris.Setup([sys.argv[0], *arguments], feed)
    atheris.Fuzz()
    return 0


def make_target() -> Callable[[bytes], None]:
    """Imports what is fuzzed, and returns what takes the bytes."""
    import numpy as np

    from sparring.contracts import TableConfig
    from sparring_serve import LookupService, ShardPosition, ShardReplicas, inference
    from sparring_serve.limits import Limits
    from sparring_serve.recommendation import recommend
    from sparring_serve.status import StatusError
    from sparring_serve.testing import MemoryTables
    from sparring_serve.wire import messages, open_inference, rows
    from sparring_serve.wire.fields import MessageError, decode, encode

    tables = MemoryTables([TableConfig("item", 4)], {"item": {7: [1, 2, 3, 4]}})
    # Of both shards, so that one refuses keys that are of the other.
    shards = ShardReplicas((("a:1",), ("b:1",)))
    services = [
        LookupService(
            tables, ShardPosition(shards, shard), Limits(most_ids=4096, most_bytes=1 << 20)
        )
        for shard in (0, 1)
    ]
    kinds = [
        each
        for module in (messages, open_inference)
        for _, each in sorted(vars(module).items())
        if isinstance(each, type) and dataclasses.is_dataclass(each)
    ]
    calls: list[Callable[[bytes], Any]] = [
        call
        for service in services
        for call in (
            lambda content, service=service: service.pull(content, 1.0),
            lambda content, service=service: recommend(service, content, 1.0),
            lambda content, service=service: inference.infer(service, content, 1.0),
            lambda content, service=service: inference.model_metadata(service, content),
            lambda content, service=service: inference.model_ready(service, content),
        )
    ]

    def read_answer(content: bytes) -> None:
        count = content[0] if content else 0
        for dtype in messages.RowDtype:
            with contextlib.suppress(MessageError):
                rows.read_rows(content[1:], 4, dtype, np.empty((count, 4), np.float32))
        with contextlib.suppress(MessageError):
            rows.read_found(content[1:], count)

    calls.append(read_answer)

    def feed(data: bytes) -> None:
        if not data:
            return
        choice, content = data[0] % (len(kinds) + len(calls)), data[1:]
        if choice >= len(kinds):
            with contextlib.suppress(StatusError):
                calls[choice - len(kinds)](content)
            return
        try:
            read = decode(kinds[choice], content)
        except MessageError:
            return
        again = encode(read)
        # Not compared as objects: NaN is unlike itself.
        if encode(decode(kinds[choice], again)) != again:
            raise AssertionError(f"{kinds[choice].__name__} is not read as it was written")

    return feed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
