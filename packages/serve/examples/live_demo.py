"""Trains from a stream, serves a version every second, and measures the replies.

    python live_demo.py configs/live.yaml reports/live.html

    generator ──► Redis Stream ──► sparring train ──► serving snapshots ──► two servers ◄── client

Meanwhile, the servers and the trainer are killed, preferences change, and the labels of some events are
inverted. The program writes a report, and ends with 1 if a check failed. It requires redis-server.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import redis
from demo_processes import (
    Process,
    free_ports,
    running_process,
    running_shard,
    sparring_command,
    wait_for,
)
from live_client import Client
from live_events import BEGIN, DRIFT, INVERTED, POISON, STREAM, World, poison
from live_page import GateState, Recording, ServerState, check_recording, write_live_page

import sparring_packed
from sparring.errors import SparringError
from sparring_serve import ClientConfig, LookupClient
from sparring_train.data.stream.cut_log import read_cuts

# Seconds after both servers reply.
KILL_A_SERVER, KILL_THE_TRAINER, LONGEST = 15.0, 30.0, 200.0
SECONDS_UNTIL_RESTART, SECONDS_AFTER_OPENING, SECONDS_BETWEEN_CALLS = 4.0, 15.0, 0.25

Started = TypeVar("Started")


class Repeated(threading.Thread):
    """Calls a function every quarter of a second until `stop`, which raises its exception."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._call, self._is_stopped = call, threading.Event()
        self._failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._is_stopped.wait(SECONDS_BETWEEN_CALLS):
                self._call()
        except Exception as error:  # `stop` raises it.
            self._failure = error

    def stop(self) -> None:
        self._is_stopped.set()
        self.join()
        if self._failure is not None:
            raise self._failure


class Demo:
    """The processes of the demo, and what happens to them.

    Args:
        folder: folder for all files of the demo.
        config: configuration of the training.
        running: ends the processes.
    """

    def __init__(self, folder: Path, config: Path, running: ExitStack) -> None:
        self._folder, self._running = folder, running
        self._serving, self._served = folder / "serving.yaml", folder / "served"
        redis_port, *ports = free_ports(3)
        self._addresses = [f"127.0.0.1:{port}" for port in ports]
        self._serving.write_text(
            json.dumps(
                {
                    "snapshots": str(self._served),
                    "shards": [self._addresses],  # two replicas of one shard
                    "server": {"poll_seconds": 1.0, "keep_versions": 5},
                    "client": {"deadline_seconds": 2.0, "consistency": "one_version"},
                }
            )
        )
        self._words = (
            "train", str(config), f"data.url=redis://127.0.0.1:{redis_port}/0/{STREAM}",
            f"snapshots.url={folder}/run", f"publish.url={self._served}",
            f"publish.notify={json.dumps(self._addresses)}", f"metrics.path={folder}/metrics.jsonl",
        )  # fmt: skip
        command = f"redis-server --port {redis_port} --bind 127.0.0.1 --save".split()
        broker = self._start(running_process(folder, "redis-server", [*command, ""]))
        wait_for("redis-server", lambda: _answers(redis_port), broker)
        self.recording = Recording()
        program = str(Path(__file__).with_name("live_events.py"))
        command = [sys.executable, program, str(redis_port)]
        self._others = [broker, self._start(running_process(folder, "generator", command))]
        self._trainer = self._start(sparring_command(folder, *self._words))
        wait_for("the first version", lambda: any(self._served.glob("step-*")), self._trainer)
        self._servers = [self._start(self._server(number)) for number in (0, 1)]
        self.world = World(time.time())
        self.redis = redis.Redis(port=redis_port)
        self.client = Client(self._serving, self.world)
        running.callback(self.client.close)

    def _start(self, process: AbstractContextManager[Started]) -> Started:
        return self._running.enter_context(process)

    def _server(self, number: int) -> AbstractContextManager[Process]:
        return running_shard(self._folder, str(self._serving), "--replica", str(number + 1))

    @property
    def seconds(self) -> float:
        """Seconds since the begin."""
        return time.time() - self.world.begin

    def mark(self, what: str, at: float | None = None) -> None:
        """Records and prints an event, which happens now or at the time `at`."""
        seconds = self.seconds if at is None else at
        self.recording.marks.append((seconds, what))
        print(f"{seconds:5.1f} s  {what}", flush=True)

    def wait(self, until: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Waits until a time, or until `is_done` returns true, and returns whether it did."""
        while not (result := is_done()) and self.seconds < until:
            for each in (*self._others, self._trainer, *self._servers):
                if each.has_ended():
                    raise RuntimeError(f"{each.name} has ended: {each.output()[-2000:]}")
            time.sleep(0.1)
        return result

    def restart_trainer(self) -> None:
        """Kills the trainer and resumes the training."""
        self._trainer.popen.kill()
        self._trainer.popen.wait()
        self.recording.trainer_killed = self.seconds
        self.mark("the trainer is killed, and resumes")
        self._trainer = self._start(sparring_command(self._folder, *self._words, "--resume"))

    def restart_server(self, number: int) -> None:
        """Kills a server, and starts it again some seconds later."""
        self._servers[number].popen.kill()
        self._servers[number].popen.wait()
        self.mark(f"server {number + 1} is killed")
        time.sleep(SECONDS_UNTIL_RESTART)
        self._servers[number] = self._start(self._server(number))
        self.mark(f"server {number + 1} is back")

    # -- observations -----------------------------------------------------------------------

    def watch_server(self, number: int) -> Callable[[], None]:
        """Returns a function that records the state of a server."""
        client = LookupClient(self._addresses[number], ClientConfig(deadline_seconds=1.0))
        self._running.callback(client.close)
        states = self.recording.servers[number]

        def watch() -> None:
            step, is_closed = None, False
            try:
                reply = client.describe().shards[0]
                step, is_closed = reply.versions[0].step, reply.gate.is_closed
            except SparringError:
                pass  # The server is down, which the report shows.
            states.append(ServerState(self.seconds, step, is_closed))

        return watch

    def watch_gate(self) -> None:
        """Records the changes of the gate."""
        gate = sparring_packed.read_gate(str(self._served))
        last = self.recording.gate[-1] if self.recording.gate else None
        if last is not None and (gate.is_closed, gate.pin) == (last.is_closed, last.pin):
            return
        self.recording.gate.append(GateState(self.seconds, gate.is_closed, gate.reason, gate.pin))
        if gate.is_closed:
            self.mark(
                f"the gate is closed, and {gate.pin or 'no version'} is pinned: {gate.reason}"
            )
        elif last is not None and last.is_closed:
            self.mark(f"the gate is open: {gate.reason}")

    def complete(self) -> None:
        """Adds to the recording what the client and the trainer have measured."""
        recording, begin = self.recording, self.world.begin
        recording.received = self.client.received
        newest = float("-inf")
        for cut in read_cuts(str(self._folder / "run")):
            newest = max(newest, cut.event_time or newest)
            recording.event_times[cut.step] = newest - begin
        for line in (self._folder / "metrics.jsonl").read_text().splitlines():
            window = json.loads(line).get("stream", {}).get("window")
            if window is not None:
                recording.windows[window["end"] - begin] = window


def run_demo(demo: Demo) -> None:
    """Makes everything happen, while a client and the servers are observed."""
    recording = demo.recording
    watches = (demo.client.ask, demo.watch_gate, demo.watch_server(0), demo.watch_server(1))
    threads = [Repeated(each) for each in watches]
    begin = demo.world.begin
    demo.redis.set(BEGIN, begin)
    poison(demo.redis, INVERTED, begin + POISON[0], begin + POISON[1])
    demo.mark("both servers reply")
    demo.wait(KILL_A_SERVER)
    demo.restart_server(0)
    demo.wait(KILL_THE_TRAINER)
    demo.restart_trainer()
    demo.wait(DRIFT[0])
    demo.mark("preferences begin to change", DRIFT[0])
    demo.wait(DRIFT[1])
    demo.mark("preferences are constant again", DRIFT[1])
    demo.wait(POISON[0])
    demo.mark("labels are inverted from now on", POISON[0])
    if demo.wait(POISON[1] + 20, lambda: recording.gate[-1].is_closed):
        demo.wait(demo.seconds + 3)
        # The restarted server must serve the pinned version.
        demo.restart_server(1)
    demo.wait(POISON[1])
    demo.mark("labels are correct again", POISON[1])
    demo.wait(LONGEST, lambda: not recording.gate[-1].is_closed)
    demo.wait(demo.seconds + SECONDS_AFTER_OPENING)
    for each in threads:
        each.stop()
    demo.complete()


def _answers(port: int) -> bool:
    try:
        return bool(redis.Redis(port=port).ping())
    except redis.ConnectionError:
        return False


def main(config: str, report: str) -> int:
    """Runs the demo; returns 1 if a check failed."""
    if shutil.which("redis-server") is None:
        raise SystemExit("the demo requires redis-server, which was not found; install Redis 7")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        demo = Demo(Path(folder), Path(config).resolve(), running)
        run_demo(demo)
    checks = check_recording(demo.recording)
    write_live_page(report, demo.recording, checks)
    print()
    for each in checks:
        print(
            f"{'ok    ' if each.is_met else 'FAILED'}  {each.what}: {each.found} ({each.expected})"
        )
    print(f"\nThe timeline is in {report}")
    return 0 if all(each.is_met for each in checks) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
