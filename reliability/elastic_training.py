"""Loses, stops and adds ranks of a job that torchrun restarts, and measures the time to the next step.

Each node of the job is an agent of torchrun on this machine with one rank of `sparring train --resume`. A
trial kills a rank, adds a node, kills this node, ends a node with SIGTERM, and adds it again, each after
some steps. Finally all nodes receive SIGTERM. The steps of all attempts must follow each other from the
newest snapshot, and the rows of the last snapshot must equal a run of one process without faults.

The same kills happen to ranks that import nothing, which shows what torchrun itself needs, and to ranks
that only create an optimizer of torch. The phases of each event are printed as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from reliability.report import Report
from sparring import latest_snapshot, open_snapshot, scan_rows

__all__ = ["TRIALS", "run"]

TRIALS = 2
ROOT = Path(__file__).parents[1]

_CONFIG = """
seed: 1
threads: 1
data: {kind: synthetic_criteo, samples: 40000, test_samples: 96, batch_size: 96, max_ids: 20000}
model: {kind: dlrm, embedding_dim: 8, bottom_mlp: [8], top_mlp: [8]}
optimizer: {sparse: {name: adagrad, lr: 0.05}}
training: {epochs: 1000000}
snapshots: {url: saved, every_steps: 50}
"""
_MIN_STEPS = 60
"""Steps between two events."""
_DEADLINE_SECONDS = 300.0
_GRACE_SECONDS = 30.0
"""torchrun kills ranks so long after SIGTERM."""
_TERMINATED = 143

# The nodes that exist begin `last_call_timeout` seconds after the last of them has joined.
_RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,join_timeout=600"

_Events = list[dict[str, Any]]


def run(trials: int) -> Report:
    """Runs the events the given number of times, with training ranks and with empty ones."""
    if importlib.util.find_spec("sparring_torch") is None:
        return Report(trials, skipped="sparring-torch is not installed")
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="sparring-reliability-") as place:
        folder = Path(place)
        (folder / "run.yaml").write_text(_CONFIG)
        empty = _lose_idle_ranks(folder, trials)
        torch_only = _lose_idle_ranks(folder, trials, "torch")
        with _job(folder, "train", "run.yaml", "--resume") as job:
            losses = _lose_ranks(job, trials)
            stopped = _stop(job, failures)
        attempts = job.attempts()
        failures += _check_steps(attempts)
        code = _resume_alone(folder, failures)
        rows = _compare_rows(folder, failures)
    idle = {"torchrun only": empty, "optimizer only": torch_only}
    measured = {**idle, "training": losses, "sigterm": stopped, "rows": rows}
    print(json.dumps(measured, indent=1))
    counts = {
        f"{event}: median milliseconds to the next step": _median_ms(losses, event)
        for event in losses
    }
    for name, found in idle.items():
        counts |= {f"{event}: {name}, milliseconds": _median_ms(found, event) for event in found}
    counts["steps in the last snapshot"] = rows["steps"]
    counts["steps made again after a snapshot"] = _num_repeated(attempts)
    counts["milliseconds from SIGTERM to the end"] = round(1000 * stopped["seconds"])
    counts["exit code of sparring train after SIGTERM"] = code
    return Report(trials, counts, failures)


def _median_ms(found: Mapping[str, list[dict[str, float]]], event: str) -> int:
    return round(1000 * median(each["total"] for each in found[event]))


class _Job:
    """Agents of torchrun, and the events that their ranks note."""

    def __init__(self, folder: Path, arguments: tuple[str, ...]) -> None:
        self.folder, self._arguments = folder, arguments
        self._notes = folder / f"notes-{len(arguments)}"
        self._notes.mkdir()
        self._read: dict[Path, int] = {}
        self.events: _Events = []
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def start(self, node: str) -> None:
        """Starts the agent of a node; the first one holds the rendezvous."""
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:3", "--nproc-per-node", "1",
            "--max-restarts", "1000", "--monitor-interval", "0.1", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", "elastic",
            "--rdzv-conf", f"{_RENDEZVOUS},is_host={int(not self.agents)}", "--local-addr", "127.0.0.1",
            "-m", "reliability.elastic_rank", str(self._notes), *self._arguments,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "SPARRING_NODE": node,
            "OMP_NUM_THREADS": "1",
            # Otherwise, torchrun does not tell nodes that join later where the store of the ranks is.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        }
        with (self.folder / f"agent-{node}.log").open("ab") as log:
            self.agents[node] = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def poll(self) -> _Events:
        """Returns all events so far, in the order of time."""
        for path in self._notes.iterdir():
            begin = self._read.get(path, 0)
            content = path.read_bytes()[begin:]
            whole = content[: content.rfind(b"\n") + 1]
            self._read[path] = begin + len(whole)
            self.events += map(json.loads, whole.splitlines())
        self.events.sort(key=lambda each: each["time"])
        return self.events

    def wait(self, what: str, is_done: Callable[[_Events], Any]) -> Any:
        """Waits until a function of the events returns a true value, and returns it."""
        end = time.monotonic() + _DEADLINE_SECONDS
        while not (found := is_done(self.poll())):
            if time.monotonic() > end:
                logs = {
                    each.name: each.read_text()[-2000:] for each in self.folder.glob("agent-*.log")
                }
                raise TimeoutError(f"waited {_DEADLINE_SECONDS:.0f} s for {what}; {logs}")
            time.sleep(0.02)
        return found

    def rank_of(self, node: str) -> int:
        """Returns the process of the newest rank of a node."""
        return int([each for each in self.poll() if each["node"] == node][-1]["pid"])

    def attempts(self) -> list[_Events]:
        """Returns the steps and saves of each attempt, as its first rank noted them."""
        found: dict[int, _Events] = {}
        for each in self.poll():
            if each["event"] in ("step", "saved") and each["rank"] == 0:
                found.setdefault(each["pid"], []).append(each)
        return list(found.values())

    def kill(self, node: str) -> None:
        """Ends an agent and its rank at once, like a machine without power."""
        agent, rank = self.agents.pop(node), self.rank_of(node)
        for process in (agent.pid, rank):  # a rank is in a session of its own
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        agent.wait()


@contextmanager
def _job(folder: Path, *arguments: str) -> Iterator[_Job]:
    job = _Job(folder, arguments)
    job.start("a")
    time.sleep(1)  # the others connect to it
    job.start("b")
    try:
        yield job
    finally:
        for node in list(job.agents):
            with suppress(IndexError):
                job.kill(node)


def _lose_ranks(job: _Job, trials: int) -> dict[str, list[dict[str, float]]]:
    """Causes each event, and returns the phases until the next step."""
    found: dict[str, list[dict[str, float]]] = {}
    _wait_for_steps(job, 0.0, 2)
    for _ in range(trials):
        for event, cause, ranks in (
            ("a rank is killed", lambda: os.kill(job.rank_of("b"), signal.SIGKILL), 2),
            ("a node joins", lambda: job.start("c"), 3),
            ("a node is killed", lambda: job.kill("c"), 2),
            ("a node receives SIGTERM", lambda: job.agents.pop("b").terminate(), 1),
            ("a node joins again", lambda: job.start("b"), 2),
        ):
            begin = time.time()
            cause()
            found.setdefault(event, []).append(_phases(job, begin, ranks))
            _wait_for_steps(job, begin, ranks)
            print(event, json.dumps(found[event][-1]), file=sys.stderr, flush=True)
    return found


def _wait_for_steps(job: _Job, begin: float, ranks: int) -> None:
    """Waits until an attempt with this number of ranks has made some steps."""

    def has_steps(events: _Events) -> bool:
        steps = [each for each in events if each["event"] == "step" and each["time"] > begin]
        last = [each for each in steps if each["pid"] == steps[-1]["pid"]]
        return len(last) >= _MIN_STEPS and last[-1]["ranks"] == ranks

    job.wait(f"{_MIN_STEPS} steps of {ranks} ranks", has_steps)


def _phases(job: _Job, begin: float, ranks: int) -> dict[str, float]:
    """Returns the seconds of each phase from an event to the next step with `ranks` ranks."""

    def first_step(events: _Events) -> dict[str, Any] | None:
        started = {
            each["pid"] for each in events if each["event"] == "started" and each["time"] > begin
        }
        steps = (each for each in events if each["event"] == "step" and each["pid"] in started)
        return next((each for each in steps if each["ranks"] == ranks), None)

    step = job.wait(f"the next step, with {ranks} ranks", first_step)
    of_rank = {each["event"]: each["time"] for each in job.events if each["pid"] == step["pid"]}
    # Ranks of the attempt, of which the last one to do something determines the phase.
    peers = {
        each["pid"] for each in job.events
        if each["event"] == "started" and abs(each["time"] - of_rank["started"]) < 3
        and each["ranks"] == ranks
    }  # fmt: skip

    def last(event: str) -> float:
        times = [
            each["time"] for each in job.events if each["pid"] in peers and each["event"] == event
        ]
        return float(max(times, default=of_rank[event]))

    ended = [
        each["time"] for each in job.events
        if begin < each["time"] < of_rank["started"] and each["pid"] not in peers
    ]  # fmt: skip
    marks = {
        "old ranks": max(ended, default=begin),
        "rendezvous": last("started"),
        "import": last("imported"),
        "join": of_rank["joined"],
        "load of rows": of_rank.get("loaded", of_rank["joined"]),
        "first step": step["time"],
    }
    phases, before = {}, begin
    for name, at in marks.items():
        phases[name] = round(max(at - before, 0.0), 3)
        before = max(at, before)
    return {"total": round(step["time"] - begin, 3), **phases}


def _lose_idle_ranks(
    folder: Path, trials: int, *arguments: str
) -> dict[str, list[dict[str, float]]]:
    """Causes the losses with ranks that do not train; returns the seconds until all of them wait."""
    found: dict[str, list[dict[str, float]]] = {}

    def wait(job: _Job, begin: float, ranks: int) -> float:
        def last(events: _Events) -> float | None:
            times = [
                each["time"]
                for each in events
                if each["event"] == "waits" and each["time"] > begin and each["ranks"] == ranks
            ]
            return times[-1] if len(times) >= ranks else None

        return float(job.wait(f"{ranks} idle ranks", last))

    with _job(folder, *arguments) as job:

        def lose_node() -> None:
            job.kill("c")
            # Their connections to the lost rank are closed. torchrun itself does not notice its loss.
            for node in ("a", "b"):
                os.kill(job.rank_of(node), signal.SIGKILL)

        wait(job, 0.0, 2)
        for _ in range(trials):
            for event, cause, ranks in (
                ("a rank is killed", lambda: os.kill(job.rank_of("b"), signal.SIGKILL), 2),
                ("a node joins", lambda: job.start("c"), 3),
                ("a node is killed", lose_node, 2),
            ):
                time.sleep(2)
                begin = time.time()
                cause()
                found.setdefault(event, []).append(
                    {"total": round(wait(job, begin, ranks) - begin, 3)}
                )
                print("idle:", arguments, event, found[event][-1], file=sys.stderr, flush=True)
    return found


def _stop(job: _Job, failures: list[str]) -> dict[str, Any]:
    """Ends all nodes with SIGTERM, and checks that the last step is saved in time."""
    begin = time.time()
    agents = list(job.agents.values())
    for agent in agents:
        agent.terminate()
    for agent in agents:
        agent.wait(_DEADLINE_SECONDS)
    seconds = time.time() - begin
    codes = [
        each["code"] for each in job.poll() if each["event"] == "ended" and each["time"] > begin
    ]
    last = max(each["step"] for each in job.events if each["event"] == "step")
    saved = latest_snapshot(job.folder / "saved")
    if saved is None or saved.step != last:
        failures.append(f"SIGTERM after step {last}: the newest snapshot is {saved}")
    if not codes or set(codes) != {_TERMINATED}:
        failures.append(f"SIGTERM: ranks ended with {codes}, expected {_TERMINATED}")
    if seconds > _GRACE_SECONDS:
        failures.append(
            f"SIGTERM: the job ended after {seconds:.1f} s, expected {_GRACE_SECONDS:.0f} s"
        )
    return {"seconds": round(seconds, 3), "codes": codes, "step": last}


def _check_steps(attempts: list[_Events]) -> list[str]:
    """Checks that steps follow each other, and that each attempt continues after a snapshot."""
    failures, saved, last = [], 0, 0
    for number, attempt in enumerate(attempts, 1):
        steps = [each["step"] for each in attempt if each["event"] == "step"]
        if not steps:
            continue
        if steps != list(range(steps[0], steps[0] + len(steps))):
            failures.append(f"attempt {number}: steps are missing or repeated")
        if steps[0] > last + 1:
            failures.append(f"attempt {number}: step {last + 1} was lost, it began at {steps[0]}")
        if steps[0] <= saved:
            failures.append(f"attempt {number}: made step {steps[0]} again, {saved} was saved")
        last = steps[-1]
        saved = max([saved, *(each["step"] for each in attempt if each["event"] == "saved")])
    return failures


def _num_repeated(attempts: list[_Events]) -> int:
    made = [each["step"] for attempt in attempts for each in attempt if each["event"] == "step"]
    return len(made) - len(set(made))


def _resume_alone(folder: Path, failures: list[str]) -> int:
    """Continues in one process until it receives SIGTERM; returns its exit code."""
    before = latest_snapshot(folder / "saved")
    command = [sys.executable, "-m", "sparring", "train", "run.yaml", "--resume"]
    often = "training.log_interval_seconds=1.0e-9"
    with subprocess.Popen(
        [*command, often], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        told, num_steps = [], 0
        for line in process.stderr:
            told.append(line)
            num_steps += line.startswith("step ")
            if num_steps == 10:
                process.terminate()
        code = process.wait(_DEADLINE_SECONDS)
    after = latest_snapshot(folder / "saved")
    if code != _TERMINATED or before is None or after is None or after.step <= before.step:
        failures.append(f"one process ended with {code} after SIGTERM: {''.join(told[-3:])}")
    return code


def _compare_rows(folder: Path, failures: list[str]) -> dict[str, Any]:
    """Compares the newest snapshot with a run in one process, without faults, of as many steps."""
    newest = latest_snapshot(folder / "saved")
    assert newest is not None
    found = _rows(newest.url)
    steps = newest.step
    runs = {}
    # One step less shows how much a lost step changes.
    for num_steps in (steps, steps - 1):
        url = f"expected-{num_steps}"
        subprocess.run(
            [sys.executable, "-m", "sparring", "train", "run.yaml", f"training.steps={num_steps}",
             f"snapshots.url={url}", "snapshots.every_steps=null"],
            cwd=folder, check=True, capture_output=True, timeout=600,
        )  # fmt: skip
        saved = latest_snapshot(folder / url)
        assert saved is not None
        runs[num_steps] = _rows(saved.url)
    difference, of_a_step = (_difference(found, runs[each]) for each in (steps, steps - 1))
    if difference is None or (of_a_step is not None and difference > of_a_step / 20):
        failures.append(
            f"rows after step {steps} differ from one process by {difference}; a lost step "
            f"changes them by {of_a_step}"
        )
    return {"steps": steps, "rows": len(found), "difference": difference, "of_a_step": of_a_step}


def _rows(url: str) -> dict[tuple[str, int], Any]:
    snapshot = open_snapshot(url)
    return {
        (table, int(key)): row
        for table in snapshot.tables
        for chunk in scan_rows(snapshot, table)
        for key, row in zip(chunk.keys, chunk.rows, strict=True)
    }


def _difference(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> float | None:
    """Returns the largest difference of two numbers; None if the keys differ."""
    if found.keys() != expected.keys():
        return None
    return max(float(np.abs(row - expected[key]).max()) for key, row in found.items())
