"""Trains a table through a service, kills a shard of it, and writes a report on who saw what.

    python service_demo.py reports/service.html

Three trainers without ranks, two of PyTorch and one of TensorFlow, push to two shards of the role
`parameters`. The table is saved and published; a shard is killed, starts again with the snapshot and
replays the pushes since then from its log, so nothing is lost. A program in C++ reads the published
versions. Meanwhile a server of the role `inference` answers rows that another training writes to Redis,
from a cache that follows its change notes. All of them are processes of their own, on loopback.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from demo_processes import Process, free_ports, running_process, sparring_command, wait_for
from service_demo_report import write_report
from service_demo_trainer import DIM, LEARNING_RATE, TABLE

import sparring_packed
from sparring.errors import SparringError
from sparring_packed.library import library_path
from sparring_serve import LookupClient, ParameterClient

PACKAGES = Path(__file__).resolve().parents[2]
TRAINERS = {"PyTorch 1": "torch", "PyTorch 2": "torch", "TensorFlow": "tensorflow"}
KILLED = 2
"""Number of the shard that is killed."""
SECONDS_OF_OUTAGE, SECONDS_AT_THE_END = 1.0, 1.0
POLL_SECONDS = 0.2
IDS_OF_A_PULL, SECONDS_BETWEEN_PULLS = 64, 0.01
RATED_ITEMS = 2000


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a trainer: a pull and a push. `at` is when it ended; times are seconds since 1970."""

    at: float
    seconds: float
    loss: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """An answer of the inference server, and how old its cached rows may be."""

    at: float
    seconds: float
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the timeline."""

    at: float
    text: str


@dataclass(slots=True)
class Seen:
    """Records of a run."""

    steps: dict[str, list[Step]] = field(default_factory=dict)
    """Of each trainer."""
    events: dict[str, Event] = field(default_factory=dict)
    """By name: saved, killed, restarted, saved_last, and published_N and read_N for a step N."""
    saved: list[tuple[float, int]] = field(default_factory=list)
    """When a snapshot of the service was saved, and its step."""
    published: list[tuple[float, int]] = field(default_factory=list)
    restarted_step: int = -1
    """Of the shard after it was killed and had replayed its log."""
    num_rows: int = 0
    """Of the last snapshot."""
    lookups: list[Lookup] = field(default_factory=list)
    lookup_errors: list[tuple[float, str]] = field(default_factory=list)
    reads: list[tuple[float, int]] = field(default_factory=list)
    """When the program in C++ answered, and from which step."""
    num_compared: int = 0
    """Last rows of which the service, the files and the program in C++ gave the same bits."""
    left_out: list[str] = field(default_factory=list)
    """Sentences on what this machine has not got."""

    def tell(self, name: str, text: str, at: float | None = None) -> None:
        """Adds an event, now if it has no time."""
        self.events[name] = Event(time.time() if at is None else at, text)
        print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path, help="the HTML file to write")
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of training before save, kill and end"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = watch_service(Path(folder), given.seconds)
    print(write_report(given.report, seen))
    print(f"report: {given.report}")
    return 1 if seen.lookup_errors else 0


def watch_service(folder: Path, seconds: float) -> Seen:
    """Trains, saves, kills, restarts, publishes and reads.

    Raises:
        RuntimeError: one of the processes ended before its time, with what it said; or rows differ.
    """
    seen = Seen()
    with ExitStack() as running:
        pool = running.enter_context(ThreadPoolExecutor(2))
        stop = threading.Event()
        watching: list[Future[None]] = []
        running.callback(stop.set)
        program = _compiled_reader(folder, seen)
        config = _write_service(folder)
        shards = [running.enter_context(_shard(folder, config, number)) for number in (1, 2)]
        for each in shards:
            wait_for("a shard", lambda each=each: "ready on" in each.said(), *shards)
        inference = _serve_redis(folder, running, seen)
        trainers = _start_trainers(folder, config, running, seen)
        if inference is not None:
            watching.append(pool.submit(_ask, inference, stop, seen))
        client = running.enter_context(ParameterClient.from_config(config))

        time.sleep(seconds)
        _save(client, seen, "saved", "the service is saved")
        served = folder / "served"
        publisher = running.enter_context(
            sparring_command(
                folder, "publish", str(folder / "saved"), str(served), "--watch",
                "--poll-seconds", str(POLL_SECONDS), "--keep", "100",
            )
        )  # fmt: skip
        wait_for("the first version", lambda: any(served.glob("step-*")), publisher)
        reader = None
        if program is not None:
            reader = running.enter_context(closing(_Reader(program, served)))
            watching.append(pool.submit(reader.watch, stop, seen))

        time.sleep(seconds)
        _kill_and_restart(folder, config, shards, running, seen)
        time.sleep(seconds)

        (folder / "stop").touch()
        for name, each in trainers.items():
            wait_for(f"the end of {name}", each.has_ended)
            seen.steps[name] = _steps(each)
        client.flush()
        _save(client, seen, "saved_last", "trainers have ended; the service is saved again")
        last = seen.saved[-1][1]
        wait_for("the last version", lambda: _published(served)[-1][1] == last, publisher)
        if reader is not None:
            wait_for("an answer in C++", lambda: _has_answered(seen, last), publisher)
        time.sleep(SECONDS_AT_THE_END)
        stop.set()
        for each in watching:
            each.result()
        _compare(client, served, reader, seen)
        seen.published = _published(served)
    return _timed(seen)


def _write_service(folder: Path) -> Path:
    """The file of the service of trainers."""
    table = {"dim": DIM, "update_method": "adagrad", "hyper": {"lr": LEARNING_RATE}}
    text = {
        "shards": [[f"127.0.0.1:{port}"] for port in free_ports(2)],
        "parameters": {"tables": {TABLE: table}, "folders": [str(folder / "saved")]},
        "server": {"most_deadline_seconds": 120.0},
        # A trainer waits for a shard that is away.
        "client": {"deadline_seconds": 60.0, "push_deadline_seconds": 60.0},
    }
    path = folder / "parameters.yaml"
    path.write_text(json.dumps(text))
    return path


@contextmanager
def _shard(folder: Path, config: Path, number: int) -> Iterator[Process]:
    words = ("--role", "parameters", str(config), "--shard", f"{number}/2")
    with sparring_command(folder, "serve", *words) as process:
        yield process


def _has_answered(seen: Seen, step: int) -> bool:
    """Whether the last answer of the program in C++ is from this step."""
    return bool(seen.reads) and seen.reads[-1][1] == step


def _start_trainers(
    folder: Path, config: Path, running: ExitStack, seen: Seen
) -> dict[str, Process]:
    """Starts those whose framework is there; returns when each has taken a step."""
    trainers = {}
    program = Path(__file__).with_name("service_demo_trainer.py")
    packages = {"torch": ("torch", "sparring_torch"), "tensorflow": ("tensorflow", "sparring_tf")}
    for number, (name, framework) in enumerate(TRAINERS.items()):
        if missing := [each for each in packages[framework] if find_spec(each) is None]:
            seen.left_out.append(f"{name} trained nothing: {missing[0]} is not installed.")
            continue
        words = [sys.executable, str(program), framework, str(config), str(number), str(folder)]
        trainers[name] = running.enter_context(running_process(folder, name, words))
    for name, each in trainers.items():
        wait_for(f"a step of {name}", lambda each=each: bool(_steps(each)), *trainers.values())
    print(f"{len(trainers)} trainers push", flush=True)
    return trainers


def _steps(trainer: Process) -> list[Step]:
    told = trainer.said().splitlines(keepends=True)
    return [Step(**json.loads(each)) for each in told if each[0] == "{" and each.endswith("\n")]


def _save(client: ParameterClient, seen: Seen, name: str, text: str) -> None:
    begin = time.monotonic()
    saved = client.save()
    seconds = time.monotonic() - begin
    seen.saved.append((time.time(), saved.step))
    seen.num_rows = saved.rows[TABLE]
    seen.tell(name, f"{text}: step {saved.step}, {seen.num_rows:,} rows, in {seconds:.2f} s")


def _kill_and_restart(
    folder: Path, config: Path, shards: list[Process], running: ExitStack, seen: Seen
) -> None:
    killed = shards[KILLED - 1].popen
    killed.kill()
    killed.wait()
    seen.tell("killed", f"shard {KILLED} is killed")
    time.sleep(SECONDS_OF_OUTAGE)
    again = running.enter_context(_shard(folder, config, KILLED))
    wait_for("the shard again", lambda: "ready on" in again.said(), again)
    found = re.search(r"ready on \S+: step (\d+)", again.said())
    seen.restarted_step = int(found[1]) if found else -1
    seen.tell("restarted", f"shard {KILLED} answers again, from step {seen.restarted_step}")


# -- rows in Redis ----------------------------------------------------------------------------------


def _serve_redis(folder: Path, running: ExitStack, seen: Seen) -> Path | None:
    """Trains into Redis, and serves that; returns the file of the server, None where it is left out."""
    if find_spec("sparring_redis") is None:
        seen.left_out.append("No inference server ran: sparring-redis is not installed.")
        return None
    from sparring_redis.testing.server import RedisServer, redis_server_missing

    if reason := redis_server_missing():
        seen.left_out.append(f"No inference server ran: it {reason}.")
        return None
    server = {"backend": "redis", "options": {"url": running.enter_context(RedisServer()).url}}
    notes = folder / "notes"
    ratings = np.random.default_rng(1)
    with (folder / "ratings.csv").open("w") as file:
        file.write("user,item,rating,timestamp\n")
        for user in range(1, 2001):
            for item in np.unique(ratings.zipf(1.3, 20) % RATED_ITEMS):
                file.write(f"{user},{item},{ratings.integers(1, 6)},{user}\n")

    def tiers(upper: dict[str, object]) -> dict[str, object]:
        return {"tiers": [{"backend": "memory", **upper}, server]}

    policy = {"options": {"capacity": 1000, "policy": "lru"}}
    training = {
        "threads": 1,
        "data": {
            "kind": "table",
            "path": str(folder / "ratings.csv"),
            "label": "rating",
            "batch_size": 256,
            "categorical": ["user", "item"],
            "required": ["user", "item"],
        },
        "model": {"kind": "matrix_factorization", "dim": DIM},
        "storage": {"backend": "tiered", "options": tiers(policy)},
        "training": {"epochs": 100_000},
        "change_notes": {"every_steps": 50, "url": str(notes)},
    }
    refresh = {"notes": str(notes), "poll_seconds": POLL_SECONDS}
    storage = {"backend": "tiered", "options": {**tiers({}), "refresh": refresh}}
    (port,) = free_ports(1)
    serving = {
        "tables": {"item": {"storage": storage}},
        "shards": [[f"127.0.0.1:{port}"]],
        "client": {"deadline_seconds": 2.0},
    }
    (folder / "redis-training.yaml").write_text(json.dumps(training))
    (folder / "inference.yaml").write_text(json.dumps(serving))
    trains = running.enter_context(sparring_command(folder, "train", "redis-training.yaml"))
    wait_for("a change note", lambda: len(list(notes.rglob("*"))) > 1, trains)
    serves = running.enter_context(sparring_command(folder, "serve", "inference.yaml"))
    wait_for("the inference server", lambda: "ready on" in serves.said(), serves, trains)
    return folder / "inference.yaml"


def _ask(config: Path, stop: threading.Event, seen: Seen) -> None:
    """Pulls from the inference server until `stop`."""
    generator = np.random.default_rng(2)
    with LookupClient.from_config(config) as client:
        while not stop.wait(SECONDS_BETWEEN_PULLS):
            ids = generator.zipf(1.3, IDS_OF_A_PULL) % RATED_ITEMS
            begin = time.perf_counter()
            try:
                answer = client.pull({"item": ids})
            except SparringError as error:
                seen.lookup_errors.append((time.time(), str(error)))
            else:
                seconds = time.perf_counter() - begin
                seen.lookups.append(Lookup(time.time(), seconds, answer.age_seconds))


# -- the program in C++ -----------------------------------------------------------------------------


class _Reader:
    """The example `refreshing.cc`: takes an id, and answers its step and the first element of the row."""

    def __init__(self, program: Path, served: Path) -> None:
        words = [program, served, TABLE, str(POLL_SECONDS)]
        self.popen = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, item: int) -> tuple[int, np.float32]:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(f"{item}\n")
        words = self.popen.stdout.readline().split()
        if not words:
            raise RuntimeError(f"the program in C++ ended with {self.popen.wait()}")
        return int(words[0]), np.float32(words[1])

    def watch(self, stop: threading.Event, seen: Seen) -> None:
        """Asks until `stop`."""
        while True:
            step, _ = self.ask(1)
            seen.reads.append((time.time(), step))
            if stop.wait(POLL_SECONDS / 2):
                return

    def close(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait(20)


def _compiled_reader(folder: Path, seen: Seen) -> Path | None:
    """Compiles the example; None where it is left out."""
    if shutil.which("c++") is None:
        seen.left_out.append("No program in C++ read the versions: there is no compiler c++.")
        return None
    library = library_path().resolve()
    includes = [f"-I{PACKAGES / each / 'include'}" for each in ("packed", "core")]
    source = PACKAGES / "packed/examples/refreshing.cc"
    words = ["c++", "-std=c++17", *includes, source, library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*words, "-pthread", "-o", folder / "refreshing"], check=True)
    return folder / "refreshing"


# -- at the end -------------------------------------------------------------------------------------


def _compare(client: ParameterClient, served: Path, reader: _Reader | None, seen: Seen) -> None:
    """Holds rows of the service to the version that was published of them."""
    with sparring_packed.open(served) as tables:
        ids = np.concatenate([each for each, _ in tables.scan(TABLE)])[:500]
        rows = tables.lookup(TABLE, ids)
    if client.pull({TABLE: ids}).rows[TABLE].tobytes() != rows.tobytes():
        raise RuntimeError("the service gives other rows than the version that was published")
    if reader is not None:
        for each, row in zip(ids.tolist(), rows, strict=True):
            step, element = reader.ask(each)
            if (step, element) != (seen.saved[-1][1], row[0]):
                raise RuntimeError(
                    f"item {each} reads as {element} in C++, and as {row[0]} in Python"
                )
    seen.num_compared = len(ids)


def _published(served: Path) -> list[tuple[float, int]]:
    manifests = map(sparring_packed.read_manifest, served.glob("step-*"))
    return sorted((each.published, each.step) for each in manifests)


def _timed(seen: Seen) -> Seen:
    """Adds events that others than this process made, and sorts all."""
    for at, step in seen.published:
        seen.tell(f"published_{step}", f"step {step} is published", at)
    for at, step in reversed(seen.reads):
        seen.events[f"read_{step}"] = Event(at, f"the program in C++ answers from step {step}")
    seen.events = dict(sorted(seen.events.items(), key=lambda each: each[1].at))
    return seen


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
