"""Counters, gauges and histograms, and their export by Prometheus's client."""

from __future__ import annotations

import math
import socket
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import InvalidArgumentError, PluginError, StorageIOError
from sparring_cli.metrics import exporter as metrics_exporter
from sparring_cli.metrics.exporter import MetricsExporter, write_metrics_file
from sparring_cli.metrics.process import process_metrics
from sparring_cli.metrics.registry import MetricFamily, MetricRegistry, MetricSample


def samples(registry: MetricRegistry, name: str) -> list[tuple[dict[str, str], float]]:
    [family] = [each for each in registry.families() if each.name == name]
    return [(dict(each.labels), each.value) for each in family.samples]


def test_counters_add_up_by_their_labels() -> None:
    registry = MetricRegistry()
    pulls = registry.counter("pulls_total", "Calls", ("table", "code"))
    pulls.add(table="user", code="OK")
    pulls.add(2, code="OK", table="item")
    pulls.add(3, table="item", code="UNAVAILABLE")
    assert samples(registry, "pulls_total") == [
        ({"table": "item", "code": "OK"}, 2),
        ({"table": "item", "code": "UNAVAILABLE"}, 3),
        ({"table": "user", "code": "OK"}, 1),
    ]
    assert registry.value("pulls_total") == 6
    assert registry.value("pulls_total", table="item") == 5
    assert registry.value("pulls_total", table="tag") == 0
    assert registry.value("others_total") == 0
    # Without labels the number exists from the start, so that its rate can be computed.
    registry.counter("errors_total", "Errors")
    assert samples(registry, "errors_total") == [({}, 0)]


def test_gauges_and_sources_show_current_values() -> None:
    registry = MetricRegistry()
    registry.gauge("layers", "Layers").set(3)
    registry.gauge("layers", "Layers").set(2)
    rows = [5.0]
    registry.add_source(
        lambda: [MetricFamily("rows", "gauge", "Rows", [MetricSample({"table": "item"}, rows[0])])]
    )
    assert (registry.value("layers"), registry.value("rows", table="item")) == (2, 5)
    rows[0] = 7
    assert registry.value("rows") == 7


def test_a_histogram_counts_values_up_to_each_bound() -> None:
    registry = MetricRegistry()
    seconds = registry.histogram("pull_seconds", "Time", bounds=(0.1, 1.0))
    for each in (0.1, 0.05, 0.5, 2.0, math.inf):
        seconds.observe(each)
    [family] = registry.families()
    assert family.samples[0].counts == {0.1: 2, 1.0: 1, math.inf: 2}
    assert family.samples[0].value == math.inf


def test_threads_lose_no_count() -> None:
    registry = MetricRegistry()
    ids = registry.counter("ids_total", "Ids", ("table",))

    def count() -> None:
        for _ in range(5_000):
            ids.add(table="item")
            registry.counter("ids_total", "Ids", ("table",)).add(2, table="item")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert registry.value("ids_total") == 60_000


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda each: each.counter("pulls", "Calls"),
            "pulls: the name of a counter must end in _to",
        ),
        (lambda each: each.gauge("Rows", "Rows"), "'Rows'.*must consist of a to z"),
        (lambda each: each.gauge("rows", "Rows", ("a-b",)), "must consist of a to z"),
        (
            lambda each: each.gauge("ids_total", "Ids"),
            "is a counter with the labels .'table'.*a gauge",
        ),
        (lambda each: each.counter("ids_total", "Ids"), r"requested as a counter with \[\]"),
        (
            lambda each: each.counter("ids_total", "Ids", ("table",)).add(),
            r"\['table'\], found \[\]",
        ),
        (
            lambda each: each.counter("ids_total", "Ids", ("table",)).add(tabel="item"),
            r"expected the labels \['table'\], found \['tabel'\]",
        ),
    ],
)
def test_wrong_names_and_labels_are_rejected(ask: Any, said: str) -> None:
    registry = MetricRegistry()
    registry.counter("ids_total", "Ids", ("table",))
    with pytest.raises(InvalidArgumentError, match=said):
        ask(registry)
    assert [each.name for each in registry.families()] == ["ids_total"]


def filled() -> MetricRegistry:
    registry = MetricRegistry()
    registry.counter("sparring_pulls_total", "Calls", ("table",)).add(2, table="item")
    registry.gauge("sparring_layers", "Layers").set(3)
    seconds = registry.histogram("sparring_pull_seconds", "Time", ("table",), bounds=(0.1, 1.0))
    for each in (0.05, 0.5, 2.0):
        seconds.observe(each, table="item")
    registry.counter("sparring_empty_total", "Nothing yet", ("table",))
    return registry


EXPECTED = (
    "# HELP sparring_pulls_total Calls",
    'sparring_pulls_total{table="item"} 2.0',
    "# TYPE sparring_layers gauge",
    "sparring_layers 3.0",
    'sparring_pull_seconds_bucket{le="0.1",table="item"} 1.0',
    'sparring_pull_seconds_bucket{le="1.0",table="item"} 2.0',
    'sparring_pull_seconds_bucket{le="+Inf",table="item"} 3.0',
    'sparring_pull_seconds_sum{table="item"} 2.55',
    "# TYPE sparring_empty_total counter",
)


def test_a_page_and_a_file_have_all_metrics(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="Prometheus's format needs sparring[metrics]")
    registry = filled()
    exporter = MetricsExporter(registry, "127.0.0.1", 0, "metrics.port")
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{exporter.port}/metrics", timeout=20) as answer:
            page = answer.read().decode().splitlines()
        with pytest.raises(
            StorageIOError, match=rf"127.0.0.1:{exporter.port} .*another metrics.port"
        ):
            MetricsExporter(registry, "127.0.0.1", exporter.port, "metrics.port")
    finally:
        exporter.close()
    write_metrics_file(registry, tmp_path / "a.prom", "metrics.format")
    for lines in (page, (tmp_path / "a.prom").read_text().splitlines()):
        assert [each for each in EXPECTED if each not in lines] == []


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    pytest.importorskip("prometheus_client", reason="answers the requests")
    monkeypatch.setattr(metrics_exporter, "_CONNECTION_SECONDS", 0.3)
    exporter = MetricsExporter(filled(), "127.0.0.1", 0, "metrics.port")
    with socket.create_connection(("127.0.0.1", exporter.port), timeout=60) as silent:
        silent.sendall(sent)
        begin = time.monotonic()
        while silent.recv(1024):
            pass
        assert time.monotonic() - begin > 0.2
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
        assert answer.status == 200
    exporter.close()
    assert not [each for each in threading.enumerate() if isinstance(each, threading.Timer)]


def test_a_missing_package_or_port_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    said = r"metrics\.port needs prometheus-client, .* pip install 'sparring\[metrics\]'"
    with pytest.raises(PluginError, match=said):
        MetricsExporter(filled(), "127.0.0.1", 0, "metrics.port")
    with pytest.raises(PluginError, match=r"pip install 'sparring\[metrics\]'"):
        write_metrics_file(filled(), tmp_path / "a.prom", "metrics.format")


def test_memory_of_a_process_excludes_mapped_files(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS:\t 900 kB\nRssAnon:\t 100 kB\nRssFile:\t 700 kB\nRssShmem:\t 20 kB\n")
    found = process_metrics(status)
    assert found["memory_bytes"] == 120 * 1024
    assert found["memory_limit_bytes"] > process_metrics()["memory_bytes"] > 0
    assert 0 < time.time() - found["start_seconds"] < 1e6
    assert "memory_bytes" not in process_metrics(tmp_path / "missing")
