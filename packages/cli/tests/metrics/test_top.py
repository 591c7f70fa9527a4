"""Tests of ``sparring top`` with pages of a training run and of a server."""

from __future__ import annotations

import json
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import InvalidArgumentError
from sparring_cli import ExitCode, MetricRegistry, MetricsAccess, MetricsExporter, main
from sparring_cli.metrics.job_state import describe_process
from sparring_cli.metrics.scrape import Interval, Scrape, complete_url, scrape

STEP = ("lookup", "dense", "exchange", "update")


class Process:
    """A process with a page of metrics."""

    def __init__(self, rank: int | None = None, access: MetricsAccess | None = None) -> None:
        self.rank = rank
        self.registry = MetricRegistry()
        self.exporter = MetricsExporter(self.registry, "127.0.0.1", 0, "port", access)
        self.url = f"http://127.0.0.1:{self.exporter.port}/metrics"

    def train(self, steps: int, *seconds: float) -> None:
        """Adds steps with the given times of the parts in `STEP`."""
        rank = {"rank": str(self.rank)}
        self.registry.counter("sparring_steps_total", "steps", ("rank",)).add(steps, **rank)
        times = self.registry.counter("sparring_steps_seconds_total", "times", ("rank", "kind"))
        for part, each in zip(STEP, seconds, strict=True):
            times.add(steps * each, kind=part, **rank)
        labels = {**rank, "table": "user", "tier": "0", "backend": "hkv"}
        for name, count in (("hits", 90), ("misses", 10)):
            made = self.registry.counter(f"sparring_tiers_{name}_total", name, tuple(labels))
            made.add(count * steps, **labels)

    def serve(self, *seconds: float) -> None:
        """Adds calls with the given times."""
        pulls = self.registry.counter("sparring_serving_pulls_total", "calls", ("table", "code"))
        times = self.registry.histogram("sparring_serving_pull_seconds", "time")
        for each in seconds:
            pulls.add(table="user", code="OK")
            times.observe(each)
        self.registry.counter("sparring_serving_ids_total", "ids").add(4 * len(seconds))
        self.registry.counter("sparring_serving_found_total", "found").add(3 * len(seconds))
        self.registry.gauge("sparring_serving_version_step", "step").set(700)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def make(rank: int | None = None) -> Process:
        started.append(Process(rank))
        return started[-1]

    yield make
    for each in started:
        each.exporter.close()


def view(*processes: Process, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["top", *(each.url for each in processes), "--every", "0.1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_slowest_rank_is_named_with_the_part_that_is_slow(
    start: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [start(each) for each in range(3)]
    # All ranks take 10 ms per step: the others wait for rank 1.
    ranks[0].train(100, 0.002, 0.003, 0.004, 0.001)
    ranks[1].train(100, 0.006, 0.003, 0.000, 0.001)
    ranks[2].train(100, 0.002, 0.003, 0.004, 0.001)
    found = view(*ranks, capsys=capsys)
    assert (found["slowest_rank"], found["slowest_part"]) == ("1", "lookup")
    assert "6.0 ms, 4.0 ms more" in found["reason"]
    for each in found["processes"]:
        assert each["step_seconds"] == pytest.approx(0.01)
        assert each["hit_rates"] == {"user tier 0 (hkv)": 0.9}
    assert main(["top", *(each.url for each in ranks), "--every", "0.1", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "Rank 1 is the slowest" in shown
    assert "90.0%" in shown


def test_even_ranks_are_not_blamed(
    start: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [start(each) for each in range(2)]
    ranks[0].train(10, 0.002, 0.003, 0.004, 0.001)
    ranks[1].train(10, 0.002, 0.0031, 0.0039, 0.001)
    found = view(*ranks, capsys=capsys)
    assert found["slowest_rank"] is None
    assert "equally fast" in found["reason"]


def test_only_the_time_between_two_readings_counts(start: Callable[..., Process]) -> None:
    process = start(0)
    process.train(1_000, 0.1, 0.1, 0.1, 0.1)
    process.serve(*[4.0] * 1_000)
    before = scrape(process.url)
    process.train(10, 0.001, 0.002, 0.003, 0.004)
    process.serve(*[0.0009] * 98, 0.2, 0.2)
    found = describe_process(process.url, Interval(scrape(process.url), before))
    assert found.steps == 1_010
    assert found.step_seconds == pytest.approx(0.01)
    assert found.parts["update"] == pytest.approx(0.004)
    assert found.serving is not None
    assert found.serving.p50_seconds is not None
    assert 0.0005 <= found.serving.p50_seconds <= 0.001
    assert found.serving.p99_seconds == pytest.approx(0.175, abs=0.076)
    assert found.serving.found_share == 0.75
    assert (found.serving.failed, found.serving.version_step) == (0, 700)


@pytest.mark.parametrize(
    ("is_leader", "role", "followers"),
    [(1, "leader", 2), (0, "follower", None), (None, None, None)],
)
def test_pushes_and_replicas_of_tables_that_learn_are_shown(
    start: Callable[..., Process],
    capsys: pytest.CaptureFixture[str],
    is_leader: int | None,
    role: str | None,
    followers: int | None,
) -> None:
    process = start()
    values = {"pushed_steps": 500, "pushes_waiting": 7, "pushes_lost": 1}
    if is_leader is not None:
        values |= {"is_leader": is_leader, "followers_in_sync": 2, "follower_lag_records": 3}
    for name, value in values.items():
        process.registry.gauge(f"sparring_serving_{name}", name).set(value)
    before = scrape(process.url)
    process.registry.gauge("sparring_serving_pushed_steps", "pushed_steps").set(530)
    after = scrape(process.url)
    found = describe_process(process.url, Interval(after, before)).learning
    assert found is not None
    assert found.pushes_per_second == pytest.approx(30 / (after.time - before.time))
    assert (found.role, found.followers_in_sync) == (role, followers)
    assert (found.pushes_waiting, found.are_pushes_lost) == (7, True)
    assert main(["top", process.url, "--every", "0.1", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "Tables that learn" in shown
    assert role is None or f"│ {role} │" in shown


def test_a_follower_or_a_server_that_is_behind_is_shown(
    start: Callable[..., Process],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    leader, follower, server = start(), start(), start()
    for process, values in (
        (
            leader,
            {"is_leader": 1, "pushed_steps": 530, "followers_in_sync": 0, "lacks_follower": 1},
        ),
        (follower, {"is_leader": 0, "pushed_steps": 377}),
        (server, {"version_step": 3, "is_behind": 1}),
    ):
        for name, value in values.items():
            process.registry.gauge(f"sparring_serving_{name}", name).set(value)
    urls = [each.url for each in (leader, follower, server)]
    assert main(["top", *urls, "--every", "0.1", "--once"]) == 0
    shown = capsys.readouterr().out
    for part in ("530", "377", "0, all behind", "step 3, behind"):
        assert part in shown
    assert main(["top", *urls, "--every", "0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["processes"]
    assert [each["learning"] and each["learning"]["pushed_steps"] for each in found] == [
        530,
        377,
        None,
    ]
    assert found[0]["learning"]["lacks_follower"]
    assert found[2]["serving"]["is_behind"]


def test_counters_of_a_restarted_process_count_from_its_start() -> None:
    labels = (("rank", "0"),)
    before = Scrape("u", 10.0, {"sparring_steps_total": {labels: 500.0}})
    after = Scrape("u", 12.0, {"sparring_steps_total": {labels: 20.0}})
    found = Interval(after, before)
    assert found.increase("sparring_steps_total") == 20
    assert found.seconds == 0
    assert Interval(after, None).gauge("sparring_none") is None


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("host:9434", "http://host:9434/metrics"),
        ("https://host/", "https://host/metrics"),
        ("http://[::1]:9434/other", "http://[::1]:9434/other"),
    ],
)
def test_parts_of_a_url_may_be_omitted(text: str, url: str) -> None:
    assert complete_url(text) == url


@pytest.mark.parametrize("text", ["", "file:///etc/passwd", "http://", "http://a:b", "http://[::1"])
def test_other_urls_are_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a page of metrics"):
        complete_url(text)


def test_errors_name_the_fix(
    start: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(url: str) -> tuple[int, str]:
        return main(["top", url, "--once"]), capsys.readouterr().err

    process = start()
    code, message = fails(process.url)
    assert code == ExitCode.INVALID
    assert "contains no metrics of sparring" in message
    code, message = fails(process.url.replace("metrics", "metrics?name[]=%zz"))
    assert code == ExitCode.INVALID
    process.exporter.close()
    code, message = fails(process.url)
    assert code == ExitCode.FAILURE
    assert "metrics.port" in message


def test_an_unreachable_page_is_shown_with_the_others(
    start: Callable[..., Process], capsys: pytest.CaptureFixture[str]
) -> None:
    lost, server = start(), start()
    server.serve(0.01)
    lost.exporter.close()
    found = view(lost, server, capsys=capsys)["processes"]
    assert "failed" in found[0]["error"]
    assert found[1]["serving"]["version_step"] == 700


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_a_page_with_a_token_and_tls_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key, token, bad = (tmp_path / each for each in ("c.pem", "key", "token", "bad"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", "/CN=run", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    token.write_text("a secret\n")
    bad.write_text("\n")
    process = Process(0, MetricsAccess(token, certificate, key))
    process.train(10, 0.1, 0.1, 0.1, 0.1)
    place = f"127.0.0.1:{process.exporter.port}"

    def run(*options: object, url: str = place) -> tuple[int, str]:
        code = main(["top", url, "--every", "0.1", "--json", *map(str, options)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    try:
        code, printed = run("--token-file", token, "--ca-file", certificate)
        assert code == 0, printed
        assert json.loads(printed)["processes"][0]["steps"] == 10
        for options, expected in (
            (("--ca-file", certificate), "--token-file"),
            (("--ca-file", certificate, "--token-file", bad), "first line must be the token"),
            (("--ca-file", bad, "--token-file", token), "PEM format"),
        ):
            code, printed = run(*options)
            assert (code != 0, expected in printed) == (True, True), printed
        assert "--ca-file" in run(url=f"https://{place}")[1]
        assert "use https://" in run("--ca-file", certificate, url=f"http://{place}")[1]
    finally:
        process.exporter.close()


def test_page_that_is_not_of_metrics_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>not { metrics } at all</html>\n")

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert main(["top", f"127.0.0.1:{server.server_port}", "--once"]) == ExitCode.INVALID
        server.shutdown()
        thread.join(30)
    assert "is not a page of metrics" in capsys.readouterr().err


def test_a_port_of_another_protocol_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(b"\0\0\x18\4\0\0 as gRPC\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        assert main(["top", f"127.0.0.1:{server.server_address[1]}", "--once"]) == ExitCode.FAILURE
        server.shutdown()
        thread.join(30)
    assert "is not HTTP" in capsys.readouterr().err
