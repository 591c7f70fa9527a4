"""`python -m soak [--hours H] [--output FOLDER] [--seed N] [--faults KIND …]`.

Runs in its own namespaces of processes and mounts (`unshare` of util-linux), which end with it: whatever
happens, no process, mount or temporary file of the run remains. Requires root, or a system in which users
can create namespaces.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from soak.checks import read_lines, run_checks
from soak.faults import FAULTS, NoEffectError, order
from soak.processes import sample
from soak.report import FaultRecord, Result, write_report
from soak.verdicts import MIN_STEPS, WARM_UP_STEPS, Resources, judge_resources
from soak.world import Plan, World

_INSIDE = "SOAK_INSIDE"
_SAMPLE_SECONDS = 1.0
_LAST_FAULT_SECONDS = 45.0
"""Time before the last events arrive in which no fault begins."""
_END_SECONDS = 600.0
"""Time after the last event in which the training must end."""
_ATTEMPTS, _ATTEMPT_SECONDS = 4, 5.0
"""Attempts of a fault that has no effect, and the time between them."""
_JUDGED_STEPS = 4 * (WARM_UP_STEPS + MIN_STEPS)
"""Steps of a run from which a life of each process must be long enough to be judged."""


def main(words: Sequence[str]) -> int:
    """Returns 1 if a promise was violated."""
    parser = argparse.ArgumentParser(prog="python -m soak")
    parser.add_argument("--hours", type=float, default=0.5, help="time during which events arrive")
    parser.add_argument("--output", type=Path, default=Path("reports/soak"))
    parser.add_argument("--seed", type=int, default=1, help="order and targets of the faults")
    parser.add_argument("--steps-per-second", type=float, default=5.0)
    parser.add_argument("--fault-seconds", type=float, default=60.0, help="0: no faults")
    parser.add_argument("--faults", nargs="*", default=[], choices=FAULTS, metavar="KIND")
    given = parser.parse_args(words)
    if _INSIDE not in os.environ:
        return _enter_namespaces(words)
    plan = Plan(
        given.hours * 3600,
        given.steps_per_second,
        given.seed,
        given.fault_seconds,
        tuple(given.faults),
    )
    output: Path = given.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    work = Path(os.environ[_INSIDE])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(work)], check=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(work)
    result = _run(plan, output, work)
    print(write_report(result, output))
    for each in result.findings:
        print(f"finding: {each}")
    return 1 if result.findings else 0


def _enter_namespaces(words: Sequence[str]) -> int:
    """Runs the same program in its own namespaces; the kernel ends all its processes with it."""
    with tempfile.TemporaryDirectory(prefix="sparring-soak-") as folder:
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if os.geteuid() != 0:
            namespaces += ["--user", "--map-root-user"]
        command = ["unshare", *namespaces, sys.executable, "-m", "soak", *words]
        process = subprocess.Popen(command, env={**os.environ, _INSIDE: folder})
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: process.kill())
        return process.wait()


def _run(plan: Plan, output: Path, work: Path) -> Result:
    result = Result(asdict(plan))
    counts: Counter[str] = Counter()
    with World(plan, output, work) as world:
        begin = world.begin
        print(f"started, {plan.num_steps} steps", flush=True)
        watch = _Watch(world, result, begin)
        try:
            _inject(world, result, begin)
            end = time.monotonic() + _END_SECONDS
            while world.trainer.code != 0:
                if time.monotonic() > end:
                    said = f"the training has not ended: {world.trainer.log_tail()}"
                    result.findings.append(said)
                    break
                time.sleep(0.5)
            result.seconds = time.monotonic() - begin
            _await_last_version(world, output)
        finally:
            watch.close()
        world.supervisor.release(world.trainer)
        world.end_clients()
        for at, said in world.supervisor.unexpected:
            result.findings.append(f"{result.fault_before(at - begin)}: {said}")
        result.findings += run_checks(world, counts)
        counts["writes to the broker repeated"] = world.feed.num_retries
        starts = world.trainer.log.read_text()
        counts["starts of all ranks"] = starts.count("resumed from ") + starts.count(
            "training starts from the beginning"
        )
    result.counts = dict(counts)
    result.resources = judge_resources(result.samples)
    result.findings += _not_judged(result.resources, plan.num_steps)
    for name, each in result.resources.items():
        if name == "nats":  # It keeps all events of the run, which the replay reads.
            continue
        result.findings += [f"{name}: {problem}" for problem in each.problems]
    return result


def _inject(world: World, result: Result, begin: float) -> None:
    """Injects a fault each minute until the stream ends."""
    plan, draw = world.plan, random.Random(world.plan.seed + 1)
    kinds = order(plan.seed, plan.kinds)
    last = begin + plan.seconds - _LAST_FAULT_SECONDS
    due = time.monotonic() + plan.fault_seconds / 2
    while not world.feed.has_ended:
        if plan.fault_seconds and due <= time.monotonic() <= last:
            fault = FaultRecord(time.monotonic() - begin, next(kinds))
            result.faults.append(fault)
            fault.detail = _attempt(fault.kind, world, draw)
            if not fault.detail:
                fault.detail = "no effect"
                result.findings.append(
                    f"the fault {fault.kind} had no effect in {_ATTEMPTS} attempts"
                )
            fault.end_seconds = time.monotonic() - begin
            print(f"{fault.seconds:.0f} s: {fault.kind}, {fault.detail}", flush=True)
            due = max(due + plan.fault_seconds, time.monotonic() + 5)
        time.sleep(0.2)


def _attempt(kind: str, world: World, draw: random.Random) -> str:
    """Returns what a fault did; empty if it had no effect, for example because files were removed."""
    for _ in range(_ATTEMPTS):
        try:
            return FAULTS[kind](world, draw)
        except (NoEffectError, OSError) as error:
            print(f"{kind}: {error}", flush=True)
            time.sleep(_ATTEMPT_SECONDS)
    return ""


def _not_judged(resources: Mapping[str, Resources], num_steps: int) -> list[str]:
    """Returns a line for each process whose memory was not judged in a run that is long enough."""
    if num_steps < _JUDGED_STEPS:
        return []
    lasting = ("rank ", "server ", "parameters ", "client ", "pushes")
    return [
        f"{name}: no life was long enough to judge its memory"
        for name, each in resources.items()
        if name.startswith(lasting) and "," not in name and each.slope is None
    ]


def _await_last_version(world: World, output: Path) -> None:
    """Waits until a client receives the last version, for at most a minute; a check reports if not."""
    end = time.monotonic() + 60
    while _served_step(output) < world.plan.num_steps and time.monotonic() < end:
        time.sleep(0.5)


def _served_step(output: Path) -> int:
    found = [
        line["served_step"]
        for path in output.glob("lookups-*.jsonl")
        for line in read_lines(path, num_last=5)
        if "served_step" in line
    ]
    return max(found, default=0)


class _Watch:
    """Samples all processes on a thread."""

    def __init__(self, world: World, result: Result, begin: float) -> None:
        self._world, self._result, self._begin = world, result, begin
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed.wait(_SAMPLE_SECONDS):
            seconds, steps = time.monotonic() - self._begin, self._world.steps()
            served = _served_step(self._world.output)
            self._result.progress.append((seconds, steps, served))
            self._result.samples += sample(self._world.by_name, seconds, steps, self._world.heaps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
