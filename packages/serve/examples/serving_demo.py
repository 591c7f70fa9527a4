"""Serves the tables of a model while it trains, and prints which version a client receives.

    python serving_demo.py configs/quickstart.yaml

`sparring train` saves a snapshot every few steps, `sparring publish --watch` publishes each one as a
serving snapshot, two `sparring serve` processes with half of the partitions each switch to it, and this
program pulls rows from both the whole time. A version becomes stale until the next one is served.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from demo_processes import Process, free_ports, running_shard, sparring_command, wait_for

import sparring_packed
from sparring_serve import LookupClient, VersionGoneError

# More steps than the one epoch of the quickstart; a snapshot about once a second.
TRAINING = (
    "training.epochs=4", "training.evaluation_interval_steps=400", "snapshots.every_steps=25",
    "snapshots.full_every=8", "snapshots.keep=1000", "report.path=null",
)  # fmt: skip
SERVING = {
    "server": {"poll_seconds": 0.2, "keep_versions": 8},
    # All rows of a pull have the same version, although the shards switch at different times.
    "client": {"deadline_seconds": 2.0, "consistency": "one_version"},
}
FIRST_STEPS = 10
IDS_PER_TABLE, SECONDS_BETWEEN_PULLS, MAX_DELAY_SECONDS = 32, 0.01, 20.0


OnPull = Callable[[int, float, float], None]
"""Called after a pull with the step of its version, its latency, and the age of its rows, in seconds."""


def serve_training(
    folder: Path, config: Path, overrides: tuple[str, ...], on_pull: OnPull | None = None
) -> list[int]:
    """Trains and serves; returns the step of each pull, up to the last snapshot of the training."""
    run, served, serving = folder / "run", folder / "served", folder / "serving.yaml"
    shards = [[f"127.0.0.1:{port}"] for port in free_ports(2)]
    serving.write_text(json.dumps({"snapshots": str(served), "shards": shards, **SERVING}))
    words = ("train", str(config), f"snapshots.url={run}", *TRAINING, *overrides)
    with ExitStack() as running:
        # The first steps, so that there is a version to serve before the training continues.
        with sparring_command(folder, *words, f"training.steps={FIRST_STEPS}") as training:
            wait_for("the first steps of the training", training.has_ended)
        publish = (
            "publish",
            str(run),
            "--output",
            str(served),
            "--watch",
            "--poll-seconds=0.2",
            "--keep=1000",
        )
        publisher = running.enter_context(sparring_command(folder, *publish))
        wait_for("the first version", lambda: any(served.glob("step-*")), publisher)
        for number in (1, 2):
            running.enter_context(running_shard(folder, str(serving), "--shard", f"{number}/2"))
        # Later versions contain the ids of the first one, too.
        with sparring_packed.open(min(served.glob("step-*"))) as tables:
            ids = {name: next(tables.scan(name))[0] for name in tables.tables}
        client = running.enter_context(LookupClient.from_config(serving))
        training = running.enter_context(sparring_command(folder, *words, "--resume"))
        return pull_versions(client, ids, training, run, on_pull)


def pull_versions(
    client: LookupClient,
    ids: dict[str, np.ndarray],
    training: Process,
    run: Path,
    on_pull: OnPull | None = None,
) -> list[int]:
    generator = np.random.default_rng(0)
    steps: list[int] = []
    oldest, last_step, deadline = 0.0, None, float("inf")
    while not steps or steps[-1] != last_step:
        if last_step is None and training.has_ended():
            last_step = max(int(each.parent.name[5:]) for each in run.glob("step-*/manifest.json"))
            deadline = time.monotonic() + MAX_DELAY_SECONDS
        if time.monotonic() > deadline:
            raise RuntimeError(f"step {last_step} was not served in {MAX_DELAY_SECONDS:g} s")
        time.sleep(SECONDS_BETWEEN_PULLS)
        chosen = {name: generator.choice(each, IDS_PER_TABLE) for name, each in ids.items()}
        begin = time.perf_counter()
        try:
            answer = client.pull(chosen)
        except VersionGoneError:
            continue  # The shards have no version in common at this moment.
        seconds = time.perf_counter() - begin
        (version,) = answer.versions
        if not all(each.all() for each in answer.found.values()):
            raise RuntimeError(f"step {version.step} does not have all rows of earlier versions")
        if not steps or steps[-1] != version.step:
            before = f"; step {steps[-1]} was {oldest:.2f} s old" if steps else ""
            age = f"{answer.age_seconds:.2f} s after it was published"
            print(f"step {version.step:4} served {age}{before}", flush=True)
        if on_pull is not None:
            on_pull(version.step, seconds, answer.age_seconds)
        steps.append(version.step)
        oldest = answer.age_seconds
    print(f"{len(steps)} pulls, {len(set(steps))} versions, none of mixed versions")
    return steps


def main(config: str, *overrides: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        serve_training(Path(folder), Path(config).resolve(), overrides)


if __name__ == "__main__":
    main(*sys.argv[1:])
