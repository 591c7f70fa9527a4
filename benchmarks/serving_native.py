"""The native server, compared with a bare echo of the same bytes over gRPC in C++, and with the server in
Python.

All calls request 100 ids with a token, while the servers export metrics and check for newer versions. A
generator in C++ sends the same calls to each server in turn: at a fixed rate, from which processor time
and latency are measured, and as fast as possible. Processor time is that of the server's process, from
/proc. The echo replies with as many bytes, and checks nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import sparring_packed
from benchmarks.measuring import Figure
from benchmarks.programs import build_program
from benchmarks.scale import Scale
from benchmarks.serving_lookup import write_snapshot
from sparring_serve.server.native_front_end import EXECUTABLE
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import SERVICE, PullRequest, TableIds

__all__ = ["PACKAGE", "PROGRAM_SETTINGS", "TOKEN", "Server", "echo", "measure", "serve"]

TABLE_ROWS, DIM, IDS, ROUNDS = 500_000, 64, 100, 3
RATE, SECONDS = 5_000, 2.0
"""Calls per second at the fixed rate, and duration of a round."""
MICROS, MICROS_TLS, ECHO_BAR, P99_BAR, PYTHON_BAR = 80, 130, 1.4, 1.0, 2.0
_TICK = os.sysconf("SC_CLK_TCK")
TOKEN = "benchmark-token-1"
PACKAGE = Path(__file__).parents[1] / "packages/serve"
PROGRAM_SETTINGS = ("-DSPARRING_SERVE_BENCHMARKS=ON", "-DCMAKE_BUILD_TYPE=Release")


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[str]
    address: str
    ca: str = ""

    def processor_seconds(self) -> float:
        """Returns the processor time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


@dataclass(frozen=True)
class _Sample:
    micros: float
    """Processor time of the server per call."""
    calls_per_second: float
    p99_ms: float
    late_ms: float
    """99th percentile of the time by which the generator sent calls too late, part of `p99_ms`."""


def measure(scale: Scale) -> list[Figure]:
    """Measures processor time per call, latency at 5,000 calls per second, and the rate."""
    if not EXECUTABLE.exists():
        return [Figure("native server", "not measured", detail="it was not built")]
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        programs = [
            build_program(name, PACKAGE, folder / "build", PROGRAM_SETTINGS)
            for name in ("load", "echo")
        ]
        keys = _write(folder, scale.rows(TABLE_ROWS))
        request = folder / "request"
        ids = np.random.default_rng(1).choice(keys, IDS, replace=False)
        request.write_bytes(encode(PullRequest((TableIds("item", ids.tobytes()),))))
        certificate = _make_certificate(folder)
        figures = []
        for tls in ("", str(certificate)):
            with ExitStack() as serving:
                servers = {
                    "echo": serving.enter_context(echo(programs[1], IDS * DIM * 4 + 140, tls)),
                    "native": serving.enter_context(serve(folder, "native", tls)),
                    "python": serving.enter_context(serve(folder, "python", tls)),
                }
                figures += _compare(programs[0], request, servers, scale, has_tls=bool(tls))
    return figures


def _compare(
    load: Path, request: Path, servers: dict[str, Server], scale: Scale, *, has_tls: bool
) -> list[Figure]:
    at_rate: dict[str, list[_Sample]] = {name: [] for name in servers}
    fast: dict[str, list[_Sample]] = {name: [] for name in servers}
    for _ in range(scale.rounds(ROUNDS)):
        for name, server in servers.items():
            # The server in Python cannot answer as many calls.
            at_rate[name].append(
                _run([load, request], server, 0 if name == "python" else RATE, scale)
            )
            fast[name].append(_run([load, request], server, 0, scale))
    micros = {name: median(each.micros for each in some) for name, some in at_rate.items()}
    p99 = {name: median(each.p99_ms for each in some) for name, some in at_rate.items()}
    late = median(each.late_ms for each in at_rate["native"])
    rates = {name: median(each.calls_per_second for each in some) for name, some in fast.items()}
    suffix = " with TLS" if has_tls else ""
    bar = MICROS_TLS if has_tls else MICROS
    what = f"{IDS} ids x {DIM}{suffix}"
    ratio, faster = micros["native"] / micros["echo"], rates["native"] / rates["python"]
    shown = ", ".join(f"{name} {each:.0f} µs" for name, each in micros.items())
    shown_rates = ", ".join(f"{name} {each:,.0f}" for name, each in rates.items())
    shown_p99 = ", ".join(f"{name} {each:.2f} ms" for name, each in p99.items())
    return [
        Figure(f"{what}: processor time of the server per call", f"{micros['native']:.0f} µs",
               f"<= {bar}", micros["native"] <= bar, shown),
        Figure(f"{what}: processor time against a bare echo", f"{ratio:.2f} x", f"<= {ECHO_BAR}",
               ratio <= ECHO_BAR, shown, ratio),
        Figure(f"{what}: p99 at {RATE:,} calls/s", f"{p99['native']:.2f} ms", f"<= {P99_BAR:g}",
               p99["native"] <= P99_BAR, f"{shown_p99}; the generator was {late:.2f} ms late; "
               "python as fast as it can"),
        Figure(f"{what}: rate against the server in Python", f"{faster:.2f} x", f">= {PYTHON_BAR:g}",
               faster >= PYTHON_BAR, f"calls/s: {shown_rates}", faster),
    ]  # fmt: skip


def _run(program: Sequence[Path], server: Server, rate: float, scale: Scale) -> _Sample:
    """Sends calls to a server and returns what it cost."""
    seconds = 0.3 if scale.is_quick else SECONDS
    method = f"/{SERVICE}/Pull"
    load, request = program
    arguments = [server.address, method, request, rate, seconds, TOKEN]
    begin = server.processor_seconds()
    ran = subprocess.run(
        [load, *map(str, arguments), *([server.ca] if server.ca else [])],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    spent = server.processor_seconds() - begin
    calls, per_second, _, p99, late, errors, *_ = map(float, ran.stdout.split())
    if errors:
        raise AssertionError(f"{errors:.0f} calls failed")
    return _Sample(1e6 * spent / calls, per_second, p99 / 1e3, late / 1e3)


def _write(folder: Path, num_rows: int) -> np.ndarray:
    sparring_packed.write(write_snapshot(folder, num_rows), folder / "served/step-1")
    return np.arange(num_rows, dtype=np.int64)


def _make_certificate(folder: Path) -> Path:
    made = folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(folder / "cert.key"), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


@contextmanager
def echo(program: Path, num_bytes: int, tls: str = "") -> Iterator[Server]:
    """Runs the echo, which replies with a number of bytes, in a block."""
    files = [tls, tls.replace(".pem", ".key")] if tls else []
    command = [str(program), str(num_bytes), *files]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = int(process.stdout.readline())
        try:
            yield Server(process, f"127.0.0.1:{port}", tls)
        finally:
            process.stdin.close()


@contextmanager
def serve(
    folder: Path,
    front_end: str,
    tls: str = "",
    options: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Runs `sparring serve` with the snapshots of a folder in a block."""
    tokens = folder / "tokens"
    tokens.write_text(f"pull {TOKEN}\n")
    config = folder / "serving.yaml"
    config.write_text(f"snapshots: {folder}/served\n")
    # A server with 4 threads rejects calls if a busy machine delays 64 of them.
    given = {"front_end": front_end, "address": "127.0.0.1:0", "metrics_port": "0", "threads": "16"}
    given |= {"token_file": str(tokens), **(options or {})}
    if tls:
        given["tls"] = f"{{certificate_file: {tls}, key_file: {tls.replace('.pem', '.key')}}}"
    overrides = [f"server.{key}={value}" for key, value in given.items()]
    command = [sys.executable, "-m", "sparring", "serve", str(config), *overrides]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "ready on" in line:
                break
        else:
            raise AssertionError("".join(lines))
        ready = lines[-1]
        try:
            yield Server(process, ready.split("ready on ")[1].split(": step")[0], tls)
        finally:
            process.terminate()
