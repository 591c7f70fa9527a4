"""Trains a table through a service of two shards, kills one of them, and shows that no push is lost.

    python service_demo.py

Two trainers without ranks push to two `sparring serve --role parameters` processes. One shard is killed
twice: first while they push, so that they wait until it is back, then after they have ended, so that
its rows can be compared. A shard that restarts loads the last save and replays its log of later pushes.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from demo_processes import Process, free_ports, running_process, running_shard, wait_for

from sparring import StorageChoice
from sparring_serve import ParameterClient

TABLE, DIM, NUM_ITEMS, BAG_SIZE, BATCH_SIZE = "item", 8, 5000, 4, 256
LEARNING_RATE = 0.2
KILLED_SHARD, OUTAGE_SECONDS = "2/2", 1.0


def kill_a_shard(folder: Path, seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Trains for `seconds` before and after a kill; returns all rows before and after a second one."""
    config, stop = folder / "parameters.yaml", folder / "stop"
    table = {
        "dim": DIM,
        "update_method": "adagrad",
        "hyper": {"lr": LEARNING_RATE},
        "storage": {"backend": "memory"},
    }
    service = {
        "shards": [[f"127.0.0.1:{port}"] for port in free_ports(2)],
        "parameters": {"tables": {TABLE: table}, "folders": [str(folder / "saved")]},
        "server": {"max_deadline_seconds": 120.0},
        # Calls wait this long for a shard that is down.
        "client": {"deadline_seconds": 60.0, "push_deadline_seconds": 60.0},
    }
    config.write_text(json.dumps(service))
    command = ("--role", "parameters", str(config), "--shard")
    with ExitStack() as running:
        running.enter_context(running_shard(folder, *command, "1/2"))
        shard = running.enter_context(running_shard(folder, *command, KILLED_SHARD))
        trainers = []
        for seed in ("1", "2"):
            words = [sys.executable, __file__, "--train", str(config), seed, str(stop)]
            trainer = running_process(folder, f"trainer {seed}", words)
            trainers.append(running.enter_context(trainer))
        for each in trainers:
            wait_for(f"a step of {each.name}", lambda each=each: "step" in each.output(), each)
        client = running.enter_context(ParameterClient.from_config(config))
        print(f"two trainers push; the service is saved at step {client.save().step}", flush=True)

        def kill_and_restart(killed: Process) -> Process:
            killed.popen.kill()
            killed.popen.wait()
            time.sleep(OUTAGE_SECONDS)
            again = running.enter_context(running_shard(folder, *command, KILLED_SHARD))
            found = re.search(r"ready on \S+: (step \d+)", again.output())
            print(f"shard {KILLED_SHARD} is back at {found[1] if found else 'no step'}", flush=True)
            return again

        time.sleep(seconds)
        print(f"shard {KILLED_SHARD} is killed while the trainers push", flush=True)
        shard = kill_and_restart(shard)
        time.sleep(seconds)
        stop.touch()
        for each in trainers:
            wait_for(f"the end of {each.name}", each.has_ended)
            print(f"{each.name}: {each.output().splitlines()[-1]}", flush=True)
        before = _rows(client)
        print(f"shard {KILLED_SHARD} is killed after the trainers have ended", flush=True)
        kill_and_restart(shard)
        return before, _rows(client)


def _rows(client: ParameterClient) -> np.ndarray:
    return client.pull({TABLE: np.arange(NUM_ITEMS)}).rows[TABLE]


def train(config: str, seed: str, stop: str) -> None:
    """Learns hidden vectors of items from the means of bags of them, until the file `stop` exists."""
    import torch

    import sparring_torch

    torch.set_num_threads(1)
    options = {"config": config, "role": "parameters", "wait": "applied", "deadline_seconds": 60.0}
    storage = StorageChoice("remote", options)
    module = sparring_torch.EmbeddingBag(DIM, name=TABLE, mode="mean", storage=storage)
    optimizer = sparring_torch.Optimizer(module, "adagrad", lr=LEARNING_RATE)
    hidden = torch.from_numpy(np.random.default_rng(0).normal(size=(NUM_ITEMS, DIM))).float()
    generator = np.random.default_rng(int(seed))
    num_steps, longest = 0, 0.0
    while not Path(stop).exists():
        ids = torch.from_numpy(generator.zipf(1.2, (BATCH_SIZE, BAG_SIZE)) % NUM_ITEMS)
        begin = time.monotonic()
        loss = (module(ids) - hidden[ids].mean(1)).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        num_steps, longest = num_steps + 1, max(longest, time.monotonic() - begin)
        if num_steps == 1:
            print(f"step 1: loss {loss.item():.3f}", flush=True)
        time.sleep(0.02)  # The machine also runs the servers.
    print(f"{num_steps} steps, last loss {loss.item():.3f}, longest step {longest:.1f} s")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        before, after = kill_a_shard(Path(folder), seconds=3.0)
    num_equal = int((before == after).all(axis=1).sum())
    print(f"{num_equal} of {NUM_ITEMS} rows are bit-identical to those before the second kill")
    return 0 if num_equal == NUM_ITEMS else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:])
    else:
        sys.exit(main())
