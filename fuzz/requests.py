"""Fuzzes messages of the lookup service: each must be handled or rejected.

The first byte selects the type of the message in the remaining bytes. A message that can be decoded must
be equal after encoding and decoding it again. Pulls, recommendation calls and inference requests are
passed to a service, which may raise only `StatusError`. Rows and found bits are decoded as in a client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fuzz import harness

_INSTRUMENTED = [
    "sparring_serve.wire",
    "sparring_serve.service",
    "sparring_serve.inference",
    "sparring_serve.recommendation",
]


@contextlib.contextmanager
def open_target() -> Iterator[harness.Target]:
    """Returns the target."""
    yield make_target()


def seeds() -> Iterator[bytes]:
    """Yields whole messages, as each of the messages that the first byte can select."""
    import numpy as np

    from sparring_serve.wire.fields import encode
    from sparring_serve.wire.messages import PullRequest, RecommendRequest, TableIds
    from sparring_serve.wire.open_inference import InferRequest, InferTensor, TensorContents

    ids = InferTensor("ids", "INT64", (3,), TensorContents((1, -2, 3)))
    for message in (
        PullRequest((TableIds("item", bytes(range(64))),), 1, 2, "0" * 32, 3.5),
        PullRequest((TableIds("item", np.array([7, -1]).tobytes()),)),
        RecommendRequest(
            "item", "", np.ones(4, np.float32).tobytes(), 2, bytes(8), np.array([1]).tobytes()
        ),
        InferRequest(model_name="item", inputs=(ids,)),
    ):
        for kind in range(64):
            yield bytes([kind]) + encode(message)


def make_target() -> Callable[[bytes], None]:
    """Imports the code to fuzz, and returns the function that runs one input."""
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
    # Two shards, so that one rejects keys of the other.
    shards = ShardReplicas((("a:1",), ("b:1",)))
    services = [
        LookupService(tables, ShardPosition(shards, shard), Limits(max_ids=4096, max_bytes=1 << 20))
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
        # The bytes are compared, because NaN is not equal to itself.
        if encode(decode(kinds[choice], again)) != again:
            raise AssertionError(f"{kinds[choice].__name__}: decoding differs after encoding")

    return feed


if __name__ == "__main__":
    sys.exit(harness.run(sys.argv[1:], _INSTRUMENTED, open_target))
