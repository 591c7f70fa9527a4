"""Runs every query of the dashboards on a real Prometheus, and draws each dashboard.

    nox -s dashboards -- --output pictures

Starts a training on three ranks, a run on a stream that publishes versions, a server, a client, and a
Prometheus that scrapes them, all on this machine. Then it slows down rank 2, which it stops for 30 of
every 40 ms. It fails if a query returns no series, or if the dashboards do not show the slow rank.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow
from dashboards import FROM_ZERO, Panel, Query, of_job, panels_of, read_dashboards
from pyarrow import parquet

from sparring.errors import SparringError
from sparring_serve import ClientConfig, LookupClient

mpl.use("agg")
from matplotlib import pyplot as plt

SLOW_RANK = 2
JOBS = {
    "training": "training",
    "exchange": "training",
    "tiers": "training",
    "serving": "serving",
    "stream": "stream",
}
"""Dashboard → the job that it shows."""

_UNITS = {"percentunit": "%", "short": "", "none": "", "Bps": "bytes/s", "reqps": "per second"}
"""Unit of Grafana → text in a title."""

TRAINING = """
seed: 1
threads: 1
data: {kind: synthetic_criteo, samples: 600000, test_samples: 2000, batch_size: 1536, max_ids: 50000}
model: {kind: dlrm, embedding_dim: 16, bottom_mlp: [64, 32], top_mlp: [64, 32]}
storage: {backend: tiered, options: {tiers: [{backend: hkv, budget_bytes: 1 MiB}, memory]}}
training: {epochs: 1000, evaluation_interval_steps: 200}
metrics: {every_seconds: 1}
"""

STREAM = """
seed: 1
threads: 1
data: {kind: stream, label: clicked, categorical: [user, item], event_time: time, batch_size: 512,
  max_milliseconds: 200}
model: {kind: dlrm, embedding_dim: 8, bottom_mlp: [], top_mlp: [16]}
storage: {backend: hkv}
metrics: {every_seconds: 1, window_seconds: 2}
publish: {every_seconds: 5, keep: 10, gate: {}}
"""


def free_ports(count: int) -> int:
    """Returns the first of `count` consecutive free ports."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        with ExitStack() as opened:
            try:
                for port in range(first, first + count):
                    opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise SystemExit("found no free ports")


@contextmanager
def started(folder: Path, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a program during the block; its output is in ``<name>.log``."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                # torchrun itself waits 30 seconds before it kills its ranks.
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def write_events(folder: Path, stop: threading.Event) -> None:
    """Adds a file of events to the stream twice per second."""
    random, count = np.random.default_rng(1), 0
    folder.mkdir()
    while not stop.wait(0.5):
        users, items = random.integers(0, 500, 300), random.integers(0, 200, 300)
        table = pyarrow.table(
            {
                "user": users,
                "item": items,
                "clicked": ((users % 7 + items % 5 + random.integers(0, 4, 300)) > 6).astype("i8"),
                "time": np.full(300, time.time()),
            }
        )
        parquet.write_table(table, folder / ".part")
        (folder / ".part").rename(folder / f"{count}.parquet")
        count += len(users)


def call_server(address: str, stop: threading.Event) -> None:
    """Makes lookups, once the server is there."""
    random = np.random.default_rng(2)
    with LookupClient(address, ClientConfig(deadline_seconds=5)) as client:
        while not stop.wait(0.02):
            try:
                client.pull({"item": random.integers(0, 220, 64)})
            except SparringError:
                stop.wait(0.5)


def slow_down(process_id: int, stop: threading.Event) -> None:
    """Stops a process for most of the time, like a machine that other programs use."""
    with suppress(ProcessLookupError):  # The run ended.
        while not stop.is_set():
            os.kill(process_id, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(process_id, signal.SIGCONT)
            time.sleep(0.01)


def find_rank(launcher: int, rank: int) -> int:
    """Returns the process of a rank that torchrun has started."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            words = path.joinpath("environ").read_bytes().split(b"\0")
        except OSError:
            continue  # The process has ended, or belongs to another user.
        if parent == str(launcher) and f"RANK={rank}".encode() in words:
            return int(path.name)
    raise SystemExit(f"torchrun has no process of rank {rank}; see train.log")


class Prometheus:
    """Runs queries.

    Args:
        port: port of the server.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, query: str) -> list[Any]:
        """Returns the current series of a query; none if the server does not answer yet."""
        return self._read("query", query=query)

    def ask_range(self, query: str, seconds: float) -> list[Any]:
        """Returns the series of a query over the last seconds."""
        now = time.time()
        return self._read("query_range", query=query, start=now - seconds, end=now, step=1)

    def _read(self, path: str, **words: Any) -> list[Any]:
        try:
            with self._opener.open(
                f"{self._url}{path}?{urllib.parse.urlencode(words)}", timeout=30
            ) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
        except OSError:
            return []
        return found


def wait_for(is_there: Callable[[], bool], what: str, seconds: float = 120.0) -> float:
    """Waits for a condition, and returns how long it took."""
    begin = time.monotonic()
    while not is_there():
        if time.monotonic() - begin > seconds:
            raise SystemExit(f"{what}: not within {seconds:g} s")
        time.sleep(0.5)
    return time.monotonic() - begin


def legend(query: Query, labels: dict[str, str]) -> str:
    text = query.legend
    for name, value in labels.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def series_of(panel: Panel, job: str, prometheus: Prometheus, seconds: float) -> dict[str, Any]:
    """Returns legend → times and values of a panel."""
    found: dict[str, Any] = {}
    for query in panel.queries:
        text = of_job(query.query).replace("$job", job)
        is_now = panel.kind in ("stat", "bars")
        series = prometheus.ask(text) if is_now else prometheus.ask_range(text, seconds)
        drawn = {}
        for each in series:
            points = np.array([each["value"]] if is_now else each["values"], float)
            if np.isfinite(points[:, 1]).any():
                drawn[legend(query, each["metric"])] = points
        if not drawn:
            raise SystemExit(f"{panel.title}: {text} returned no series")
        found |= drawn
    return found


def draw(name: str, title: str, panels: list[tuple[Panel, dict[str, Any]]], output: Path) -> None:
    """Draws a dashboard with the panels where Grafana places them."""
    lines: list[list[tuple[Panel, dict[str, Any]]]] = [[]]
    for each in panels:
        if sum(panel.width for panel, _ in lines[-1]) + each[0].width > 24:
            lines.append([])
        lines[-1].append(each)
    figure = plt.figure(figsize=(16, 3.1 * len(lines)), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(len(lines), 24)
    for number, line in enumerate(lines):
        begin = 0
        for panel, series in line:
            axes = figure.add_subplot(grid[number, begin : begin + panel.width])
            begin += panel.width
            unit = _UNITS.get(panel.unit, panel.unit)
            axes.set_title(panel.title + (f" ({unit})" if unit else ""), fontsize=10)
            _draw_panel(axes, panel, series)
    figure.savefig(output / f"{name}.png", dpi=80)
    plt.close(figure)


def _draw_panel(axes: Any, panel: Panel, series: dict[str, Any]) -> None:
    if panel.unit == "percentunit":
        series = {label: points * [1, 100] for label, points in series.items()}
    if panel.kind == "stat":
        text = "\n".join(f"{label}\n{points[-1, 1]:.3g}" for label, points in series.items())
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=16)
        axes.set_axis_off()
        return
    if panel.kind == "bars":
        for place, (label, points) in enumerate(series.items()):
            axes.barh(place, points[-1, 1], alpha=0.5)
            axes.text(0, place, f" {label}", va="center")
        axes.invert_yaxis()
        axes.set_yticks([])
        return
    end = max(points[-1, 0] for points in series.values())
    if panel.kind == "stacked":
        times = sorted({float(at) for points in series.values() for at in points[:, 0]})
        rows = [np.interp(times, points[:, 0], points[:, 1], left=0) for points in series.values()]
        axes.stackplot(np.array(times) - end, rows, labels=list(series))
    else:
        for label, points in series.items():
            axes.plot(points[:, 0] - end, points[:, 1], label=label)
    if len(series) <= 10:  # A longer legend would cover the panels below.
        axes.legend(fontsize=7, loc="upper left")
    axes.tick_params(labelsize=7)
    axes.set_xlabel("seconds", fontsize=7)
    if panel.unit in FROM_ZERO:
        axes.set_ylim(bottom=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("dashboards"))
    parser.add_argument("--seconds", type=float, default=60.0, help="time after the slowdown")
    given = parser.parse_args()
    prometheus_program = shutil.which("prometheus")
    if prometheus_program is None:
        raise SystemExit("no prometheus here; Debian and Ubuntu: apt-get install prometheus")
    given.output.mkdir(parents=True, exist_ok=True)
    output, stop = given.output.resolve(), threading.Event()
    first = free_ports(8)
    train_port, stream_port, metrics_port, serve_port, own_port = (
        first,
        *range(first + 3, first + 7),
    )
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        (folder / "train.yaml").write_text(TRAINING)
        (folder / "stream.yaml").write_text(STREAM)
        serving = {
            "snapshots": str(folder / "served"),
            "shards": [[f"127.0.0.1:{serve_port}"]],
            "server": {"metrics_port": metrics_port, "front_end": "python", "poll_seconds": 1},
        }
        (folder / "serving.yaml").write_text(json.dumps(serving))
        targets = {
            "training": [train_port + rank for rank in range(3)],
            "stream": [stream_port],
            "serving": [metrics_port],
        }
        scraped = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{p}" for p in ports]}]}
            for job, ports in targets.items()
        ]
        settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": scraped}
        (folder / "prometheus.yml").write_text(json.dumps(settings))

        def start(program: str, *command: str) -> subprocess.Popen[bytes]:
            return running.enter_context(started(folder, program, list(command)))

        threading.Thread(target=write_events, args=(folder / "events", stop), daemon=True).start()
        python = sys.executable
        start(
            "prometheus", prometheus_program, "--config.file=prometheus.yml",
            "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{own_port}",
        )  # fmt: skip
        train = start(
            "train", python, "-m", "torch.distributed.run", "--standalone", "--local-addr",
            "127.0.0.1", "--nproc-per-node=3", "-m", "sparring", "train", "train.yaml",
            f"metrics.port={train_port}",
        )  # fmt: skip
        words = {"data.url": "events", "snapshots.url": "run", "publish.url": "served"}
        start(
            "stream", python, "-m", "sparring", "train", "stream.yaml",
            f"metrics.port={stream_port}", *(f"{key}={folder / at}" for key, at in words.items()),
        )  # fmt: skip
        try:
            record(folder, given.seconds, output, train.pid, start, stop, (own_port, serve_port))
        except SystemExit:
            for log in folder.glob("*.log"):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
            raise
        finally:
            stop.set()  # A rank that is stopped again and again cannot end.


def record(
    folder: Path,
    seconds: float,
    output: Path,
    launcher: int,
    start: Callable[..., Any],
    stop: threading.Event,
    ports: tuple[int, int],
) -> None:
    """Waits for all metrics, slows down a rank, and draws the dashboards."""
    prometheus = Prometheus(ports[0])
    wait_for(lambda: any((folder / "served").glob("step-*")), "a published version")
    start("serve", sys.executable, "-m", "sparring", "serve", "serving.yaml")
    address = f"127.0.0.1:{ports[1]}"
    threading.Thread(target=call_server, args=(address, stop), daemon=True).start()
    wait_for(lambda: len(prometheus.ask("up == 1")) == 5, "five targets")
    wait_for(lambda: bool(prometheus.ask("sparring_training_quality")), "an evaluation")
    time.sleep(20)
    slow = find_rank(launcher, SLOW_RANK)
    slowing = threading.Thread(target=slow_down, args=(slow, stop))
    slowing.start()
    dashboard = read_dashboards()["training"]
    shown, why = list(panels_of(dashboard))[:2]

    def names_the_slow_rank(panel: Panel) -> bool:
        query = of_job(panel.queries[0].query).replace("$job", "training")
        found = prometheus.ask(query)
        best = max(found, key=lambda each: float(each["value"][1]), default=None)
        return best is not None and best["metric"]["rank"] == str(SLOW_RANK)

    for panel in (shown, why):
        taken = wait_for(lambda panel=panel: names_the_slow_rank(panel), panel.title)  # type: ignore[misc]
        print(f"{panel.title!r} names rank {SLOW_RANK} after {taken:.0f} s")
    time.sleep(seconds)
    num_queries = 0
    for name, described in read_dashboards().items():
        panels = [
            (each, series_of(each, JOBS[name], prometheus, seconds + 20))
            for each in panels_of(described)
        ]
        num_queries += sum(len(each.queries) for each, _ in panels)
        draw(name, described["title"], panels, output)
    if not names_the_slow_rank(shown):
        raise SystemExit(f"{shown.title}: does not name rank {SLOW_RANK}")
    print(f"{num_queries} queries returned series; the pictures are in {output}")


if __name__ == "__main__":
    main()
