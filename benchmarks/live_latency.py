"""Time from an event to a served answer: a stream, a trainer that publishes, a server and a client.

    generator ──► Redis Streams ──► sparring train ──► serving snapshots ──► sparring serve ◄── client

All processes run on this machine. The model is the one of `configs/quickstart.yaml`: 26 columns of ids
with 16 elements each. A version with the changed rows and the ordinary parameters is published every
0.5 s of event time. For each event, the time ends when the client receives a reply whose version
contains the step that trained the event, according to the cuts that the run records.

A second measurement trains events that are already in the stream, with and without publishing.

The generator draws events from the synthetic log before the measurement, and sends Arrow IPC batches
every 20 ms, whose events have the time of the batch.

Run it separately: `python -m benchmarks.live_latency --seconds 300 2000 5000 20000`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring_redis.testing.server import free_port
from sparring_serve import ClientConfig, LookupClient
from sparring_train.data.planted_model import PlantedModel
from sparring_train.data.stream.cut_log import read_cuts

__all__ = ["measure"]

RATES, SECONDS = (2_000, 5_000, 20_000), 60.0
BAR = 2.0
_EVERY, _POLL, _WARM_UP = 0.02, 0.005, 8.0
_POOL_EVENTS = 400_000
_IDS = [f"cat_{number}" for number in range(1, 27)]
_NUMBERS = [f"int_{number}" for number in range(1, 14)]
_READY = re.compile(r"ready on (\S+): ")
_CONFIG = """
seed: 1
threads: 1
data:
  kind: stream
  url: redis://127.0.0.1:{port}/0/clicks
  label: label
  categorical: [{ids}]
  required: [{ids}]
  numeric: [{numbers}]
  event_time: time
  batch_size: 4096
  max_milliseconds: 50
model: {{kind: dlrm, embedding_dim: 16, bottom_mlp: [64, 32], top_mlp: [64, 32]}}
storage: {{backend: hkv}}
optimizer:
  sparse: {{name: adagrad, lr: 0.05}}
  dense: {{name: adam, lr: 0.001}}
snapshots: {{url: run, full_every: 1000}}
publish: {publish}
metrics: {{path: metrics.jsonl, every_seconds: 1}}
"""


def measure(scale: Scale) -> list[Figure]:
    """Measures each rate."""
    seconds = 10.0 if scale.is_quick else SECONDS
    latencies = [each for rate in RATES for each in measure_rate(rate, seconds)]
    return [*latencies, measure_steps(seconds)]


def measure_steps(seconds: float) -> Figure:
    """Returns the time of a step with a version every 0.5 s, and without versions.

    Args:
        seconds: duration of each of the two runs, approximately.
    """
    (without, _), (whole, longest) = (_step_times(seconds, each) for each in (False, True))
    detail = f"{1000 * whole:.1f} and {1000 * without:.1f} ms, longest {1000 * longest:.0f} ms"
    what = "time of a step with a version every 0.5 s, divided by that without"
    return Figure(what, f"{whole / without:.2f}", detail=detail, ratio=whole / without)


def _step_times(seconds: float, is_published: bool) -> tuple[float, float]:
    """Returns the mean and the maximum time between steps."""
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="live-")))
        port = closing.enter_context(_redis(folder))
        _write_config(folder, port, "{url: served, every_seconds: 0.5}" if is_published else "{}")
        count = round(seconds * RATES[-1])
        with _process(["--fill", str(count), str(port)]) as generator:
            generator.wait()
        trainer = closing.enter_context(
            _command("train", "live.yaml", "data.stop_at_end=true", cwd=folder, log=folder / "train.log")
        )  # fmt: skip
        if trainer.wait(10 * seconds + 60):
            raise RuntimeError(f"the run failed:\n{(folder / 'train.log').read_text()[-2000:]}")
        times = [cut.ranges[0].read_time for cut in read_cuts(str(folder / "run"))]
        pauses = np.diff(np.array(times, np.float64))[10:]
        return float(pauses.mean()), float(pauses.max())


def measure_rate(rate: int, seconds: float, full_every: int = 8) -> list[Figure]:
    """Returns the latency of a rate, and the time of each stage in the same run.

    Args:
        rate: events per second.
        seconds: duration of the measurement, after a warm-up.
        full_every: see the section `publish` of the configuration.
    """
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="live-")))
        port = closing.enter_context(_redis(folder))
        server = f"127.0.0.1:{free_port()}"
        _write_config(
            folder,
            port,
            f"{{url: served, every_seconds: 0.5, full_every: {full_every}, notify: ['{server}']}}",
        )
        generator = closing.enter_context(_process(["--generate", str(rate), str(port)]))
        assert generator.stdout is not None
        generator.stdout.readline()  # the events are drawn
        trainer = closing.enter_context(
            _command("train", "live.yaml", cwd=folder, log=folder / "train.log")
        )
        _await(lambda: any(folder.glob("served/*/manifest.json")), trainer, folder)
        (folder / "serving.yaml").write_text(
            f'snapshots: {folder}/served\nshards: [["{server}"]]\nserver: {{poll_seconds: 5}}\n'
        )
        closing.enter_context(
            _command("serve", "serving.yaml", cwd=folder, log=folder / "serve.log")
        )
        _await(lambda: _READY.search((folder / "serve.log").read_text()), trainer, folder)
        replies = _Replies(server)
        time.sleep(_WARM_UP)
        before = _counters(folder)
        begin = time.time()
        replies.run(seconds)
        end = time.time() - 5  # Later events may not be served yet.
        after = _counters(folder)
        trainer.send_signal(signal.SIGTERM)
        trainer.wait(60)
        generator.terminate()
        sent = [json.loads(line) for line in generator.stdout]
        return _figures(rate, _Run(folder, sent, replies, before, after, (begin, end)))


def _write_config(folder: Path, port: int, publish: str) -> None:
    ids, numbers = ", ".join(_IDS), ", ".join(_NUMBERS)
    text = _CONFIG.format(port=port, ids=ids, numbers=numbers, publish=publish)
    (folder / "live.yaml").write_text(text)


@dataclass
class _Run:
    folder: Path
    sent: list[Any]
    """Number of the message, time, and number of events."""
    replies: _Replies
    before: Any
    after: Any
    span: tuple[float, float]


class _Replies:
    """Polls a server, and records when each step was first served."""

    def __init__(self, server: str) -> None:
        self._client = LookupClient(server, ClientConfig(deadline_seconds=5))
        self._ids = {"cat_3": np.arange(16)}
        self.steps: list[tuple[float, int]] = []
        self.count = 0

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            step = self._client.pull(self._ids).version.step
            self.count += 1
            if not self.steps or step > self.steps[-1][1]:
                self.steps.append((time.time(), step))
            time.sleep(_POLL)
        self._client.close()


def _figures(rate: int, run: _Run) -> list[Figure]:
    cuts = read_cuts(str(run.folder / "run"))
    ends = np.array([cut.ranges[0].end for cut in cuts])
    steps = np.array([cut.step for cut in cuts])
    read_times = np.array([cut.ranges[0].read_time for cut in cuts])
    number, sent, count = map(np.array, zip(*run.sent, strict=True))
    is_chosen = (sent >= run.span[0]) & (sent < run.span[1]) & (number < ends[-1])
    number, sent, count = number[is_chosen], sent[is_chosen], count[is_chosen].astype(int)
    cut = np.searchsorted(ends, number, side="right")
    served_at, served = map(np.array, zip(*run.replies.steps, strict=True))
    place = np.searchsorted(served, steps[cut])
    is_served = place < len(served)
    latency = np.where(is_served, served_at[np.minimum(place, len(served) - 1)] - sent, np.inf)
    whole = np.repeat(latency, count)
    waits = np.repeat(read_times[cut] - sent, count)
    p50, p99 = np.percentile(whole, [50, 99], method="higher")
    stages = _stages(run, float(np.mean(waits)))
    return [
        Figure(
            f"event to reply at {rate:,} events/s, p99", f"{p99:.2f} s", f"<= {BAR} s", bool(p99 <= BAR),
            f"p50 {p50:.2f} s, max {whole.max():.2f} s, {len(whole):,} events; {stages}", float(p99),
        )
    ]  # fmt: skip


def _stages(run: _Run, wait: float) -> str:
    """Returns the mean time of each stage."""
    one, two = run.before, run.after
    steps = two["steps"]["steps"] - one["steps"]["steps"]
    found = {
        "wait in the stream": wait,
        "between steps": (run.span[1] + 5 - run.span[0]) / max(steps, 1),
    }
    one, two = one["publishing"], two["publishing"]
    results = {
        name: two["publications"][name] - one["publications"][name] for name in two["publications"]
    }
    for name, total in two["publish_seconds"].items():
        found[name] = (total - one["publish_seconds"][name]) / max(results["published"], 1)
    shown = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in found.items())
    counted = ", ".join(f"{count} {name}" for name, count in results.items() if count)
    return f"{shown}; {counted}; {run.replies.count:,} replies"


def _counters(folder: Path) -> Any:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def _await(is_ready: Any, process: subprocess.Popen[str], folder: Path) -> None:
    end = time.monotonic() + 60
    while not is_ready():
        if process.poll() is not None or time.monotonic() > end:
            logs = "".join(each.read_text()[-2000:] for each in folder.glob("*.log"))
            raise RuntimeError(f"a process did not start:\n{logs}")
        time.sleep(0.05)


# -- processes ----------------------------------------------------------------------------------


@contextmanager
def _redis(folder: Path) -> Iterator[int]:
    program, port = shutil.which("redis-server"), free_port()
    if program is None:
        raise RuntimeError("this benchmark needs redis-server; install Redis 7")
    command = [
        program,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    with _ended(subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)):
        yield port


@contextmanager
def _command(*words: str, cwd: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as file:
        command = [str(Path(sys.executable).with_name("sparring")), *words]
        process = subprocess.Popen(command, cwd=cwd, stdout=file, stderr=file, text=True)
        with _ended(process):
            yield process


@contextmanager
def _process(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.live_latency", *words]
    with _ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        yield process


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# -- the generator ------------------------------------------------------------------------------


def _generate(rate: int, port: int) -> None:
    """Sends events until SIGTERM, and then prints number, time and number of events of each message."""
    import redis

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    payloads = list(_payloads(max(1, round(rate * _EVERY))))
    print("ready", flush=True)
    client = redis.Redis(port=port)
    sent = []
    begin = time.time()
    while not stop.is_set():
        number = len(sent)
        payload, place, count = payloads[number % len(payloads)]
        pause = begin + number * _EVERY - time.time()
        if pause > 0:
            time.sleep(pause)
        now = time.time()
        payload[place : place + 8 * count] = np.full(count, now).tobytes()
        client.xadd("clicks", {"value": bytes(payload)}, maxlen=5_000, approximate=True)
        sent.append((number, now, count))
    for each in sent:
        print(json.dumps(each))


def _fill(count: int, port: int) -> None:
    """Sends events whose times differ as if they had been sent at the largest rate."""
    import redis

    client = redis.Redis(port=port)
    payloads = list(_payloads(round(RATES[-1] * _EVERY)))
    begin = time.time() - count / RATES[-1]
    for number in range(count // payloads[0][2]):
        payload, place, size = payloads[number % len(payloads)]
        payload[place : place + 8 * size] = np.full(size, begin + number * _EVERY).tobytes()
        client.xadd("clicks", {"value": bytes(payload)})


def _payloads(size: int) -> Iterator[tuple[bytearray, int, int]]:
    """Yields encoded batches, and where the times of their events are."""
    mark = 8.123456789e300
    for log in PlantedModel(seed=1, max_ids=100_000, skew=1.1).chunks(_POOL_EVENTS):
        for begin in range(0, len(log) - size + 1, size):
            rows = slice(begin, begin + size)
            columns = dict(zip(_IDS, log.ids[rows].T, strict=True))
            columns |= dict(zip(_NUMBERS, log.dense[rows].T, strict=True))
            columns |= {"label": log.labels[rows], "time": np.full(size, mark)}
            batch = pyarrow.RecordBatch.from_pydict(columns)
            sink = pyarrow.BufferOutputStream()
            with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            payload = bytearray(sink.getvalue())
            yield payload, payload.index(np.full(size, mark).tobytes()), size


def main(arguments: Sequence[str]) -> None:
    """Measures the given rates, or generates events."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_latency")
    parser.add_argument("rates", nargs="*", type=int, help="events per second")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration per rate")
    parser.add_argument("--full-every", type=int, default=8, help="publish.full_every")
    parser.add_argument("--generate", nargs=2, type=int, metavar=("RATE", "PORT"))
    parser.add_argument("--fill", nargs=2, type=int, metavar=("COUNT", "PORT"))
    parser.add_argument("--steps", action="store_true", help="measure the time of steps instead")
    given = parser.parse_args(arguments)
    if given.generate:
        _generate(*given.generate)
        return
    if given.fill:
        _fill(*given.fill)
        return
    if given.steps:
        each = measure_steps(given.seconds)
        print(f"{each.what}: {each.value} ({each.detail})", flush=True)
        return
    for rate in given.rates or RATES:
        for each in measure_rate(rate, given.seconds, given.full_every):
            print(f"{each.what}: {each.value} ({each.detail})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
