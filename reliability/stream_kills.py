"""Kills the processes of a model that learns from a stream, and breaks connections to the broker.

In each life, one or two ranks train all events of a stream of Redis, Kafka or NATS, with snapshots,
deltas and published versions, which two servers return to a client. Meanwhile a rank, the publisher or
a server is killed (SIGKILL), the connections to the broker break, or the broker is killed and started
again. Ranks that ended start again and resume, until the stream ends. The result must be bit-equal to a
training on files with the same events, steps and ranks, the recorded cuts must contain each event
exactly once, and the last published version must contain the rows and parameters of the last snapshot.
Each reply must have the rows and parameters that the training on files had after the step of the
version of the reply.
"""

from __future__ import annotations

import faulthandler
import io
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from reliability.published_models import check_published
from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from reliability.stream_brokers import Broker, brokers
from reliability.stream_servers import READY_NAME, Servers, array_hashes, rows_hash
from sparring import list_snapshots, open_snapshot, scan_rows
from sparring_redis.testing.server import free_port
from sparring_testing.processes.rank_launchers import gloo_environment
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.run.replay import list_differences

__all__ = ["TRIALS", "run"]

TRIALS = 100

_NUM_EVENTS = 9_600
_STEP = 64
_MESSAGE = 16
_STEP_SECONDS = 0.05
"""Pause after each step, so that replies contain many versions."""
_ENDS_RANKS = {"rank", "connection", "broker"}
"""Faults after which the ranks may end with an error."""
_LONGEST_LIFE = 60
"""Maximum number of starts until a stream must have ended."""
_START_SECONDS = 120.0
_END_SECONDS = 240.0

_CONFIG = f"""
seed: 3
threads: 1
deadline_seconds: 200
data: {{label: clicked, categorical: [user, item], types: {{user: string}}, numeric: [price],
       batch_size: {_STEP}}}
model: {{kind: dlrm, embedding_dim: 8, bottom_mlp: [16], top_mlp: [16]}}
storage: {{backend: memory}}
"""


def run(trials: int) -> Report:
    """Divides the faults among the brokers and the numbers of ranks."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    found, reasons = brokers()
    if not found:
        return Report(trials, skipped="; ".join(reasons))
    scenarios = [(name, make, ranks) for name, make in found for ranks in (1, 2)]
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder(in_memory=True))
        events = _Events(folder)
        for number, (name, make, num_ranks) in enumerate(scenarios):
            wanted = trials * (number + 1) // len(scenarios) - trials * number // len(scenarios)
            if not wanted:
                continue
            draw = random.Random(number)
            broker = stack.enter_context(make())
            done = 0
            while done < wanted and not failures:
                life = _Life(events, broker, num_ranks, draw)
                try:
                    done += life.run(wanted - done)
                    life.check()
                    counts["events compared"] += _NUM_EVENTS
                    counts["replies compared"] += life.servers.replies.total()
                except AssertionError as error:
                    failures.append(f"{name}, ranks: {num_ranks}, life in {life.folder}: {error}")
                finally:
                    life.close()
                for fault, count in life.faults.items():
                    counts[f"{fault}, {name}, ranks: {num_ranks}"] += count
                for error, count in life.servers.errors.items():
                    counts[f"calls with {error}"] += count
                counts["starts"] += life.num_starts
                counts["streams trained to their end"] += 1
    for reason in reasons:
        counts[f"not run: {reason}"] = 0
    return Report(trials, counts, failures)


class _Events:
    """Events, and what a training on files makes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        # Each start of a rank forks a process that has already imported torch.
        self.context.set_forkserver_preload(
            ["reliability.stream_kills", "sparring_train.pytorch.trainer"]
        )
        draw = np.random.default_rng(5)
        users, items = draw.integers(0, 500, _NUM_EVENTS), draw.integers(0, 800, _NUM_EVENTS)
        self.table = pyarrow.table(
            {
                "user": [f"user {each}" for each in users],
                "item": items,
                "price": draw.normal(size=_NUM_EVENTS),
                "clicked": (users + items + draw.integers(0, 9, _NUM_EVENTS)) % 2,
            }
        )
        self._expected: dict[int, _Expected] = {}
        self._numbers = iter(range(10**6))

    def new_folder(self) -> Path:
        return self.folder / f"run-{next(self._numbers):05d}"

    def parts(self, num: int) -> list[Any]:
        """Returns the events of each partition."""
        size = _NUM_EVENTS // num
        return [self.table.slice(at * size, size) for at in range(num)]

    def expected(self, num_ranks: int) -> _Expected:
        """Returns the states of a training on files."""
        if num_ranks not in self._expected:
            share = _STEP // num_ranks
            parts = self.parts(num_ranks)
            steps = range(0, parts[0].num_rows, share)
            ordered = [part.slice(begin, share) for begin in steps for part in parts]
            path = self.new_folder()
            path.mkdir()
            (path / READY_NAME).touch()  # It has no servers.
            # A training on files needs rows for the test, which a stream reads from other files.
            log = pyarrow.concat_tables([*ordered, self.table.slice(0, _STEP)])
            uses = ["train"] * _NUM_EVENTS + ["test"] * _STEP
            parquet.write_table(log.append_column("use", [uses]), path / "log.parquet")
            overrides = [
                "data.kind=table",
                f"data.path={path / 'log.parquet'}",
                "data.split={column: use}",
                "data.shuffle=false",
                f"snapshots.url={path / 'snapshots'}",
                "snapshots.every_steps=1",
                "snapshots.keep=1000",
            ]
            job = _Job(self, overrides, num_ranks, path)
            assert job.wait() == [0] * num_ranks, job.errors()
            self._expected[num_ranks] = _Expected(str(path / "snapshots"))
        return self._expected[num_ranks]


class _Expected:
    """States of a training without faults, after each step."""

    def __init__(self, url: str) -> None:
        snapshots = [open_snapshot(each) for each in list_snapshots(url)]
        self.last = snapshots[-1]
        self._states = {}
        """Step → `rows_hash` and `array_hashes`."""
        for each in snapshots:
            keys, rows = {}, {}
            for name, table in each.tables.items():
                chunks = list(scan_rows(each, name))
                keys[name] = np.concatenate([chunk.keys for chunk in chunks])
                rows[name] = np.concatenate([chunk.rows for chunk in chunks])[:, : table.dim]
            arrays = array_hashes(each.state("torch").arrays)
            self._states[each.step] = rows_hash(keys, rows), arrays
        self.keys = keys
        """Table → all its keys."""

    def check(self, servers: Servers) -> None:
        """Raises AssertionError if a reply differs from the state after its step."""
        assert not servers.mixed, servers.mixed[0]
        assert servers.replies, f"no replies, errors: {servers.errors}"
        for step, rows, arrays in servers.replies:
            expected_rows, expected_arrays = self._states[step]
            assert rows == expected_rows, f"a reply with step {step} has rows of another step"
            assert arrays, f"a reply with step {step} has no parameters"
            other = f"a reply with step {step} has parameters of another step"
            assert arrays <= expected_arrays, other


class _Life:
    """A run that trains a stream to its end, in spite of faults."""

    def __init__(
        self, events: _Events, broker: Broker, num_ranks: int, draw: random.Random
    ) -> None:
        self._events, self._broker, self._num_ranks, self._draw = events, broker, num_ranks, draw
        self.folder = events.new_folder()
        self.folder.mkdir()
        self.faults: Counter[str] = Counter()
        self.num_starts = 0
        payloads = [
            [_as_arrow(part.slice(begin, _MESSAGE)) for begin in range(0, part.num_rows, _MESSAGE)]
            for part in events.parts(num_ranks)
        ]
        self.partitions, url = broker.write(payloads)
        served = self.folder / "served"
        self._expected = events.expected(num_ranks)
        self.servers = Servers(self.folder, served, self._expected.keys)
        self._overrides = [
            "data.kind=stream",
            f"data.url={url}",
            "data.stop_at_end=true",
            "data.max_milliseconds=20000",
            f"snapshots.url={self.folder / 'snapshots'}",
            "snapshots.every_steps=5",
            "snapshots.full_every=4",
            "snapshots.resume=true",
            f"publish.url={served}",
            "publish.every_seconds=0.1",
            f"publish.notify={json.dumps(self.servers.addresses)}",
        ]

    def run(self, most: int) -> int:
        """Trains the stream to its end, with at most `most` faults. Returns their number."""
        while self.num_starts < _LONGEST_LIFE:
            self.num_starts += 1
            # A fault of the last start may break up to 20 further connections.
            injected = {"connection"} if self._broker.breaks_connections else set()
            job = _Job(self._events, self._overrides, self._num_ranks, self.folder)
            injected |= self._inject(job, most)
            codes = job.wait()
            if codes == [0] * self._num_ranks:
                return self.faults.total()
            assert injected & _ENDS_RANKS, f"ended with {codes} after {injected}: {job.errors()}"
        raise AssertionError(f"has not ended after {self.num_starts} starts")

    def _inject(self, job: _Job, most: int) -> set[str]:
        """Injects faults until a rank ends, and returns their kinds."""
        job.wait_for_first_step()
        while not self.servers.ready_file.exists() and not job.has_ended:
            time.sleep(0.05)
        kinds = ["rank", "publisher", "publisher", "server", "server", "connection"]
        kinds += ["broker"] * len(self._broker.faults)
        injected: set[str] = set()
        while self.faults.total() < most and "rank" not in injected:
            time.sleep(self._draw.uniform(0.05, 0.8))
            if job.has_ended:
                break
            kind = self._draw.choice(kinds)
            if kind == "rank":
                job.kill(self._draw.randrange(self._num_ranks))
            elif kind == "publisher":
                if not job.kill_publisher():
                    continue
            elif kind == "server":
                if not self.servers.kill_one(self._draw):
                    continue
            elif kind == "connection":
                self._broker.break_connections(self._draw)
            else:
                self._broker.restart(self._draw)
            self.faults[kind] += 1
            injected.add(kind)
        return injected

    def close(self) -> None:
        self.servers.close()

    def check(self) -> None:
        """Raises AssertionError if an event was lost or applied twice."""
        url = str(self.folder / "snapshots")
        found = open_snapshot(list_snapshots(url)[-1])
        expected = self._expected.last
        differences = [
            each for each in list_differences(expected, found) if each != "state origins"
        ]
        assert not differences, f"differs from a training on files: {differences}"
        assert found.step == _NUM_EVENTS // _STEP, f"has {found.step} steps"
        cuts = read_cuts(url)
        assert [cut.step for cut in cuts] == [*range(1, found.step + 1)], "cuts are missing"
        for name in self.partitions:
            ranges = [each for cut in cuts for each in cut.ranges if each.partition == name]
            ends = [each.end for each in ranges]
            begins = [self._broker.first_offset, *ends[:-1]]
            assert [each.begin for each in ranges] == begins, f"{name} has gaps"
            count = sum(each.num_events for each in ranges)
            assert count == _NUM_EVENTS // self._num_ranks, f"{name} has {count} events"
        check_published(self.folder / "served", found)
        assert self.servers.wait_for_step(found.step), "no reply with the last version"
        self._expected.check(self.servers)


class _Job:
    """The processes of all ranks of one start."""

    def __init__(
        self, events: _Events, overrides: Sequence[str], num_ranks: int, folder: Path
    ) -> None:
        self._folder = folder
        self._started = events.context.Semaphore(0)
        port = free_port()
        self._ranks: list[ForkServerProcess] = [
            events.context.Process(
                target=_train_rank,
                args=(list(overrides), rank, num_ranks, port, str(folder), self._started),
                daemon=True,
            )
            for rank in range(num_ranks)
        ]
        for each in self._ranks:
            each.start()

    @property
    def has_ended(self) -> bool:
        return any(not each.is_alive() for each in self._ranks)

    def wait_for_first_step(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while not self._started.acquire(timeout=0.05) and not self.has_ended:
            assert time.monotonic() < end, "no step"

    def kill(self, rank: int) -> None:
        self._ranks[rank].kill()

    def kill_publisher(self) -> bool:
        """Kills the process that publishes, and returns whether there was one."""
        for children in Path(f"/proc/{self._ranks[0].pid}/task").glob("*/children"):
            with suppress(OSError):
                for child in map(int, children.read_text().split()):
                    if b"sparring_serve.publishing.process" in _command_line(child):
                        os.kill(child, signal.SIGKILL)
                        return True
        return False

    def wait(self) -> list[int | None]:
        """Returns the exit codes, and kills ranks that do not end."""
        end = time.monotonic() + _END_SECONDS
        for each in self._ranks:
            each.join(max(end - time.monotonic(), 0))
        stuck = [rank for rank, each in enumerate(self._ranks) if each.is_alive()]
        for rank in stuck:
            self._ranks[rank].kill()
            self._ranks[rank].join()
        why = f"the ranks {stuck} did not end in {_END_SECONDS:.0f} s: {self.errors() if stuck else ''}"
        assert not stuck, why
        return [each.exitcode for each in self._ranks]

    def errors(self) -> str:
        """Returns what the ranks wrote to stderr at this start."""
        texts = [path.read_text() for path in sorted(self._folder.glob("rank-*.txt"))]
        return "\n".join(text[-6000:] for text in texts)


def _command_line(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


class _Starting:
    """Progress that reports the first step, waits for the servers, and pauses after each step."""

    def __init__(self, started: Any, ready: Path) -> None:
        from sparring_train.run.result import SilentProgress

        self._silent, self._started, self._ready = SilentProgress(), started, ready
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._silent, name)

    def on_step(self, step: int, loss: float, samples: int) -> None:
        if self._is_first:
            self._is_first = False
            self._started.release()
            return  # A version is published after this step, with which the servers start.
        end = time.monotonic() + _START_SECONDS
        while not self._ready.exists() and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(_STEP_SECONDS)


def _train_rank(
    overrides: list[str], rank: int, num_ranks: int, port: int, folder: str, started: Any
) -> None:
    """Trains on one rank of a job."""
    from sparring import make_plugin_manager
    from sparring_train.config.reading.loader import parse_config
    from sparring_train.pytorch.trainer import train

    log, ready = Path(folder, f"rank-{rank}.txt"), Path(folder, READY_NAME)
    sys.stderr = log.open("w", buffering=1)
    os.dup2(sys.stderr.fileno(), 2)
    faulthandler.dump_traceback_later(_END_SECONDS - 10, exit=False)
    if num_ranks > 1:
        os.environ |= {
            **gloo_environment(rank, num_ranks),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    try:
        train(parse_config(_CONFIG, overrides), make_plugin_manager(), _Starting(started, ready))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _as_arrow(table: Any) -> bytes:
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
