"""The native server, called from Python one call at a time, compared with a bare echo and with Redis.

The transport of `LookupClient` sends the same requests to the server and to an echo in C++, which replies
with as many bytes and does nothing else. Redis is queried by redis-py with hiredis: pipelined MGET of at
most 1,000 keys each, encoded before the measurement, whose replies stay a list of bytes. A pull is timed
completely: from distinct ids to an array.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import sparring_packed
from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.programs import build_program
from benchmarks.scale import Scale
from benchmarks.serving_lookup import write_snapshot
from benchmarks.serving_native import PACKAGE, PROGRAM_SETTINGS, TOKEN, echo, serve
from sparring_serve import ClientConfig, LookupClient
from sparring_serve.client.grpc_transport import GrpcTransport
from sparring_serve.client.transport import Send
from sparring_serve.server.native_front_end import EXECUTABLE
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PullRequest, TableIds

__all__ = ["compare", "measure"]

TABLE_ROWS, DIM, KEYS_PER_COMMAND = 500_000, 64, 1_000
ROUNDS = {100: 1_000, 1_000: 400, 10_000: 60, 65_536: 30}
"""Number of ids per call, and number of rounds."""
ECHO_BARS = {100: 1.25, 1_000: 1.25}
LARGE_BAR, REDIS_BAR = 1.1, 1.0

Call = Callable[[], Any]


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios of times with 100 to 65,536 ids."""
    if not EXECUTABLE.exists():
        return [Figure("native server", "not measured", detail="it was not built")]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = build_program("echo", PACKAGE, folder / "build", PROGRAM_SETTINGS)
        num_rows = scale.rows(TABLE_ROWS)
        sparring_packed.write(write_snapshot(folder, num_rows), folder / "served/step-1")
        return compare(program, folder, num_rows, scale)


def compare(program: Path, folder: Path, num_rows: int, scale: Scale) -> list[Figure]:
    """Returns the figures of a serving snapshot in a folder."""
    figures = []
    with ExitStack() as closing:
        server = closing.enter_context(serve(folder, "native"))
        token = folder / "token"
        token.write_text(TOKEN)
        config = ClientConfig(deadline_seconds=9, token_file=token)
        client = closing.enter_context(LookupClient(server.address, config))
        transport = GrpcTransport(config)
        closing.callback(transport.close)
        tables = closing.enter_context(sparring_packed.open(folder / "served"))
        redis = _fill_redis(closing, client, num_rows)
        for count, rounds in ROUNDS.items():
            ids = np.random.default_rng(count).choice(num_rows, min(count, num_rows), replace=False)
            request = encode(PullRequest((TableIds("item", ids.tobytes()),)))
            out = np.empty((len(ids), DIM), np.float32)
            with echo(program, len(ids) * DIM * 4 + 140) as bare:
                calls: dict[str, Call] = {
                    "pull": lambda ids=ids: client.pull({"item": ids}).rows["item"],
                    "native": _call_of(transport, server.address, request),
                    "echo": _call_of(transport, bare.address, request),
                    "lookup": lambda ids=ids, out=out: tables.lookup("item", ids, out=out),
                }
                if redis is not None:
                    calls["redis"] = _mget_of(redis, ids)
                    if b"".join(calls["redis"]()) != calls["pull"]().tobytes():
                        raise AssertionError("Redis and the server return different rows")
                figures += _compare(calls, count, scale.rounds(rounds))
    return figures


def _compare(calls: dict[str, Call], count: int, rounds: int) -> list[Figure]:
    timings = alternate(calls, rounds=rounds, warm_up=10)
    shown = ", ".join(f"{name} {each.median * 1e3:.3f} ms" for name, each in timings.items())
    detail = f"{shown}; {os.cpu_count()} cores"
    what = f"{count:,} ids x {DIM}"
    slower = median(ratios(timings["native"], timings["echo"]))
    bar = ECHO_BARS.get(count)
    figures = [
        Figure(
            f"{what}: latency against a bare echo", f"{slower:.2f} x",
            None if bar is None else f"<= {bar}", None if bar is None else slower <= bar, detail,
        )
    ]  # fmt: skip
    if count == max(ROUNDS):
        limit = timings["echo"].median + timings["lookup"].median
        slower = timings["native"].median / limit
        figures.append(
            Figure(f"{what}: latency against echo and lookup in process", f"{slower:.2f} x",
                   f"<= {LARGE_BAR}", slower <= LARGE_BAR, detail)
        )  # fmt: skip
    if "redis" in timings:
        faster = median(ratios(timings["redis"], timings["pull"]))
        figures.append(
            Figure(f"{what}: pull against Redis, pipelined MGET", f"{faster:.2f} x",
                   f">= {REDIS_BAR:g}", faster >= REDIS_BAR, detail, faster)
        )  # fmt: skip
    return figures


def _call_of(transport: GrpcTransport, address: str, request: bytes) -> Call:
    def call() -> Any:
        [outcome] = transport.exchange([Send(address, "Pull", request, 9.0)])
        if outcome.answer is None:
            raise AssertionError(f"{outcome.status}: {outcome.message}")
        return outcome.answer

    return call


def _mget_of(redis: Any, ids: Any) -> Call:
    keys = [each.tobytes() for each in ids]
    commands = [keys[at : at + KEYS_PER_COMMAND] for at in range(0, len(keys), KEYS_PER_COMMAND)]

    def call() -> list[bytes]:
        pipeline = redis.pipeline(transaction=False)
        for each in commands:
            pipeline.mget(each)
        return [value for values in pipeline.execute() for value in values]

    return call


def _fill_redis(closing: ExitStack, client: LookupClient, num_rows: int) -> Any:
    """Returns a client of Redis with all rows; None if it cannot run."""
    from sparring_redis.testing.server import RedisServer, redis_server_missing

    if redis_server_missing():
        return None
    import redis

    server = closing.enter_context(RedisServer())
    made = closing.enter_context(redis.Redis(port=server.port))
    for begin in range(0, num_rows, 1 << 16):
        keys = np.arange(begin, min(begin + (1 << 16), num_rows))
        rows = client.pull({"item": keys}).rows["item"]
        made.mset({key.tobytes(): row.tobytes() for key, row in zip(keys, rows, strict=True)})
    return made
