"""Tests that a real Prometheus scrapes a server of tables and a training run."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, TableConfig
from sparring_serve import (
    ClientConfig,
    LookupClient,
    LookupServer,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
)
from sparring_serve.testing import MemoryTables
from sparring_testing.processes.waiting import free_ports, wait_until
from sparring_train import MetricsWriter

PROMETHEUS = shutil.which("prometheus")

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="no prometheus here; Debian and Ubuntu: apt-get install prometheus"
)

ITEM = TableConfig("item", 4)

Ask = Callable[[str], dict[tuple[str, ...], float]]
Scrape = Callable[..., Ask]


@pytest.fixture
def scrape(tmp_path: Path, closing: ExitStack) -> Scrape:
    """Starts a Prometheus that scrapes ports; returns a function that runs queries."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def start(**ports: int | None) -> Ask:
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
            for name, port in ports.items()
        ]
        (own,) = free_ports(1)
        words = {
            "config.file": tmp_path / "prometheus.yml",
            "storage.tsdb.path": tmp_path / "data",
            "web.listen-address": f"127.0.0.1:{own}",
        }
        # JSON is valid YAML.
        settings = {"global": {"scrape_interval": "200ms"}, "scrape_configs": jobs}
        words["config.file"].write_text(json.dumps(settings))
        command = [str(PROMETHEUS), *(f"--{name}={value}" for name, value in words.items())]
        log = closing.enter_context((tmp_path / "log").open("wb"))
        process = closing.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
        closing.callback(process.terminate)

        def ask(query: str) -> dict[tuple[str, ...], float]:
            url = f"http://127.0.0.1:{own}/api/v1/query?query={urllib.parse.quote(query)}"
            try:
                with opener.open(url, timeout=20) as answer:
                    found = json.load(answer)["data"]["result"]
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                return {}
            samples = [(sorted(each["metric"].items()), each["value"][1]) for each in found]
            return {
                tuple(text for name, text in labels if name not in HIDDEN): float(value)
                for labels, value in samples
            }

        return ask

    return start


HIDDEN = ("__name__", "job", "instance")
"""Labels that queries do not return."""


def test_prometheus_scrapes_a_server_and_a_run(scrape: Scrape) -> None:
    tables = MemoryTables([ITEM], {"item": {key: [1, 2, 3, 4] for key in range(10)}})
    config = ServingConfig(server=ServerConfig(metrics_port=0, poll_seconds=3600))
    position = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
    with (
        LookupServer(tables, config, position, "127.0.0.1:0") as server,
        LookupClient(server.address, ClientConfig(deadline_seconds=20)) as client,
        StepContainer() as container,
        MetricsWriter(container, port=0, every_seconds=0.05) as run,
    ):
        assert server.exporter is not None
        ask = scrape(serve=server.exporter.port, train=run.port)
        container.declare(ITEM, StorageChoice("memory"))
        for _ in range(5):
            client.pull({"item": np.arange(20)})
        container.counters.steps = 7
        container.assign("item", np.arange(3), np.zeros((3, 4), np.float32))
        for step in container.after_step:
            time.sleep(0.06)
            step()
        wait_until(lambda: ask("sum(up)") == {(): 2.0}, 30, "both are reached")
        wait_until(lambda: ask("sparring_steps_total") == {("0",): 7.0}, 30, "steps of rank 0")
        wait_until(
            lambda: ask("sparring_tables_rows") == {("0", "item"): 3.0}, 30, "rows of the table"
        )
        pulls = "sparring_serving_pulls_total"
        wait_until(lambda: ask(pulls) == {("OK", "item"): 5.0}, 30, "pulls by code and table")
        assert ask("sparring_serving_ids_total") == {(): 100.0}
        assert ask("sparring_serving_found_total") == {(): 50.0}
        assert ask("sparring_serving_pull_seconds_count") == {(): 5.0}
        median = ask("histogram_quantile(0.5, sum by (le) (sparring_serving_pull_seconds_bucket))")
        assert 0 < median[()] < 5
