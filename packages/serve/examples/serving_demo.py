"""Serves a model's tables while it trains, and writes a report on what a client saw.

    python serving_demo.py configs/quickstart.yaml reports/serving.html

`sparring train` saves a snapshot every few steps; `sparring publish --watch` turns each into a serving
snapshot, full or a delta; two `sparring serve` processes, each with half of the partitions, take it; and
a client here goes on asking both. All of them are processes of their own, on loopback.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from demo_processes import Process, free_ports, sparring_command, wait_for
from serving_demo_report import write_report

import sparring_packed
from sparring.errors import SparringError
from sparring_serve import Answer, LookupClient, VersionGoneError

# More steps than the one epoch of the quickstart; a snapshot every second or so.
TRAINING = (
    "training.epochs=4", "training.evaluation_interval_steps=400", "snapshots.every_steps=25",
    "snapshots.full_every=8", "snapshots.keep=1000", "report.path=null",
)  # fmt: skip
POLL_SECONDS = 0.2
IDS_OF_A_TABLE = 32
SECONDS_BETWEEN_PULLS = 0.01
MOST_SECONDS_WITHOUT_A_VERSION = 5.0


@dataclass(frozen=True, slots=True)
class Pull:
    """One answer: when it came, how long it took, which step and age its oldest row has."""

    at: float
    seconds: float
    step: int
    age_seconds: float
    num_ids: int
    num_versions: int
    num_found: int


@dataclass(slots=True)
class Seen:
    """Records of what the client saw; times are seconds since 1970."""

    pulls: list[Pull] = field(default_factory=list)
    errors: list[tuple[float, str]] = field(default_factory=list)
    saved: list[tuple[float, int]] = field(default_factory=list)
    """When a snapshot of training was committed, and its step."""
    published: list[tuple[float, int, bool]] = field(default_factory=list)
    """When a serving snapshot was committed, its step, whether it is a delta."""
    num_compared: int = 0
    """Rows of the last answer that were compared with the files, bit by bit."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="what to train")
    parser.add_argument("report", type=Path, help="the HTML file to write")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the training")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = watch_training(Path(folder), given.config.resolve(), tuple(given.overrides))
    print(write_report(given.report, seen))
    print(f"report: {given.report}")
    return 1 if seen.errors else 0


def watch_training(folder: Path, config: Path, overrides: tuple[str, ...]) -> Seen:
    """Trains, publishes, serves and asks until training has ended and its last version was served.

    Raises:
        RuntimeError: one of the processes ended before its time; with what it said.
    """
    run, served = folder / "run", folder / "served"
    serving = folder / "serving.yaml"
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    serving.write_text(
        json.dumps(
            {
                "snapshots": str(served),
                "shards": [[each] for each in addresses],
                # Versions come by the second here, and shards take each at a time of their own.
                "server": {"poll_seconds": POLL_SECONDS, "keep_versions": 8},
                "client": {"deadline_seconds": 2.0, "consistency": "one_version"},
            }
        )
    )
    seen = Seen()
    with ExitStack() as running:

        def start(name: str, *arguments: str) -> Process:
            return running.enter_context(sparring_command(folder, name, *arguments))

        training = start("train", str(config), f"snapshots.url={run}", *TRAINING, *overrides)
        publisher = start(
            "publish", str(run), str(served), "--watch", "--poll-seconds", str(POLL_SECONDS),
            "--keep", "1000",
        )  # fmt: skip
        # A name without a leading dot is committed.
        wait_for("the first snapshot", lambda: any(served.glob("step-*")), training, publisher)
        print("published: serving begins", flush=True)
        shards = [start("serve", str(serving), "--shard", f"{number}/2") for number in (1, 2)]
        for shard in shards:
            wait_for("a server", lambda shard=shard: "ready on" in shard.said(), *shards)
        client = running.enter_context(LookupClient.from_config(serving))
        keys = _keys(served)
        print(f"asking {len(keys)} tables of two shards while training goes on", flush=True)
        _ask(client, keys, seen, training, run, shards)
        _compare(client, keys, served, seen)
        seen.saved = _saved(run)
        seen.published = _published(served)
    return seen


def _ask(
    client: LookupClient,
    keys: dict[str, npt.NDArray[np.int64]],
    seen: Seen,
    training: Process,
    run: Path,
    shards: list[Process],
) -> None:
    """Pulls until the last snapshot of a training that has ended is answered from."""
    generator = np.random.default_rng(0)
    last_step, ended = None, 0.0
    while last_step is None or not seen.pulls or seen.pulls[-1].step < last_step:
        if last_step is None and training.has_ended():
            last_step, ended = max(step for _, step in _saved(run)), time.monotonic()
        if last_step is not None and time.monotonic() - ended > 20:
            raise RuntimeError(f"step {last_step} was never served: {shards[0].said()}")
        asked = {name: generator.choice(some, IDS_OF_A_TABLE) for name, some in keys.items()}
        begin = time.perf_counter()
        try:
            answer = _pulled(client, asked)
        except SparringError as error:
            seen.errors.append((time.time(), str(error)))
        else:
            seen.pulls.append(
                Pull(
                    time.time(), time.perf_counter() - begin, answer.versions[0].step,
                    answer.age_seconds, sum(map(len, asked.values())), len(answer.versions),
                    sum(int(each.sum()) for each in answer.found.values()),
                )
            )  # fmt: skip
        time.sleep(SECONDS_BETWEEN_PULLS)


def _pulled(client: LookupClient, asked: dict[str, npt.NDArray[np.int64]]) -> Answer:
    """An answer of one version. Shards that refresh one after the other may have none in common for a
    moment, and the client says: wait until they have refreshed."""
    until = time.monotonic() + MOST_SECONDS_WITHOUT_A_VERSION
    while True:
        try:
            return client.pull(asked)
        except VersionGoneError:
            if time.monotonic() > until:
                raise
            time.sleep(SECONDS_BETWEEN_PULLS)


def _compare(
    client: LookupClient, keys: dict[str, npt.NDArray[np.int64]], served: Path, seen: Seen
) -> None:
    """Holds an answer of the service to the files it was published in."""
    with sparring_packed.open(served) as tables:
        for name, ids in keys.items():
            answer = client.pull({name: ids[:1000]})
            rows = tables.lookup(name, ids[:1000])
            if answer.rows[name].tobytes() != rows.tobytes():
                raise RuntimeError(f"table {name!r}: the service gives other rows than its files")
            seen.num_compared += len(rows)


def _keys(served: Path) -> dict[str, npt.NDArray[np.int64]]:
    """Ids that the first version has, by table: all later ones have them, too."""
    with sparring_packed.open(min(served.glob("step-*"))) as tables:
        return {
            name: np.concatenate([ids for ids, _ in tables.scan(name)]) for name in tables.tables
        }


def _saved(run: Path) -> list[tuple[float, int]]:
    manifests = sorted(run.glob("step-*/manifest.json"))
    return [
        (each.stat().st_mtime, int(each.parent.name.removeprefix("step-"))) for each in manifests
    ]


def _published(served: Path) -> list[tuple[float, int, bool]]:
    manifests = map(sparring_packed.read_manifest, sorted(served.glob("step-*")))
    return [(each.published, each.step, each.base is not None) for each in manifests]


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
