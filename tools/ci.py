"""Runs the stages of `.ci/run`, each with a limit, and repeats failed tests once at the end.

    python tools/ci.py [STAGE ...]

The first stages run one after another, the others in pairs, because each waits often. A stage that
exceeds its limit prints the stacks of its processes and fails; the others continue. Prints the time of
each stage. A failed test that passes when it is repeated alone is printed as FLAKY and written to
reports/flaky.txt; more than three fail the run. Tests with the mark `exact` are not repeated. Needs nox,
psutil and py-spy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"

PY_SPY = Path(sysconfig.get_path("scripts")) / "py-spy"

MAX_FLAKY = 3
"""Maximum number of tests that fail once and then pass."""

MAX_SECONDS = 80 * 60
"""Maximum time of all stages."""

REPEAT_SECONDS = 600
"""Maximum time for repeating the failed tests."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the check.

    Attributes:
        command: the program with its arguments.
        limit_seconds: three times the time on an idle machine of two cores.
    """

    name: str
    command: tuple[str, ...]
    limit_seconds: int


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a stage: its times, and what happened; an empty `problem` means that it passed."""

    name: str
    wall_seconds: float
    processor_seconds: float
    problem: str


def nox_stage(name: str, limit_seconds: int, session: str = "", *arguments: str) -> Stage:
    command = (sys.executable, "-m", "nox", "-s", session or name, "--", *arguments)
    return Stage(name, command, limit_seconds)


# Later stages use the environment and the wheels of `tests`.
WHEELS = "--wheels=.nox/tests/wheels"
FIRST = (
    nox_stage("system_packages", 300),
    nox_stage("lint", 180),
    nox_stage("tests", 1800),
)
# The longest are started first.
OTHERS = (
    nox_stage("slow", 1800, "tests", "--slow", "--as-installed"),
    nox_stage("tensorflow", 1500, "tests_tensorflow", WHEELS),
    nox_stage("addresses", 900, "native_addresses"),
    nox_stage("jax", 420, "tests_jax", WHEELS),
    nox_stage("types", 300, "types", "--python=.nox/tests/bin/python"),
    nox_stage("conformance", 300, "conformance", WHEELS),
    nox_stage("docs", 180),
    nox_stage("cuda", 300),
)


def main() -> int:
    begin = time.monotonic()
    chosen = sys.argv[1:]
    unknown = set(chosen) - {each.name for each in (*FIRST, *OTHERS)}
    if unknown:
        names = ", ".join(each.name for each in (*FIRST, *OTHERS))
        print(f"ci: found the stages {', '.join(sorted(unknown))}, expected some of: {names}")
        return 2
    folder = REPORTS / "ci"
    folder.mkdir(parents=True, exist_ok=True)
    failed_tests = folder / "failed_tests"
    failed_tests.unlink(missing_ok=True)
    os.environ["SPARRING_FAILED_TESTS"] = str(failed_tests)
    end = begin + MAX_SECONDS
    results = []
    for stage in FIRST:
        if not chosen or stage.name in chosen:
            results.append(run(stage, None, end))

    def run_beside(stage: Stage) -> Result:
        path = folder / f"{stage.name}.log"
        with path.open("w+") as log:
            result = run(stage, log, end)
        print(f"\n== {stage.name}\n{path.read_text(errors='replace')}", flush=True)
        return result

    with ThreadPoolExecutor(2) as lanes:
        wanted = [each for each in OTHERS if not chosen or each.name in chosen]
        results += lanes.map(run_beside, wanted)
    problems = [f"{each.name}: {each.problem}" for each in results if each.problem]
    problems += repeat(failed_tests)
    print(f"\n{'stage':<16}{'wall s':>8}{'CPU s':>8}  result")
    for each in results:
        row = f"{each.name:<16}{each.wall_seconds:>8.0f}{each.processor_seconds:>8.0f}"
        print(f"{row}  {each.problem or 'passed'}")
    used = sum(each.processor_seconds for each in results)
    print(f"{'all':<16}{time.monotonic() - begin:>8.0f}{used:>8.0f}")
    print(*problems, sep="\n")
    return 1 if problems else 0


def run(stage: Stage, log: IO[Any] | None, end: float) -> Result:
    """Runs a stage until its limit, or until `end`; its output goes to `log`."""
    begin = time.monotonic()
    limit = min(stage.limit_seconds, end - begin)
    if limit <= 0:
        return Result(
            stage.name, 0, 0, f"not run: the limit of {MAX_SECONDS} s for all stages is over"
        )
    print(f"== {stage.name}: {' '.join(stage.command)}", flush=True)
    process = subprocess.Popen(stage.command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() - begin > limit:
            print_stacks(process.pid, log)
            kill_tree(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
            break
        time.sleep(0.2)
    seconds = time.monotonic() - begin
    code = os.waitstatus_to_exitcode(status)
    problem = "" if code == 0 else f"failed with exit code {code}"
    if seconds > limit:
        problem = f"ended after its limit of {limit:.0f} s; its output contains the stacks"
    return Result(stage.name, seconds, usage.ru_utime + usage.ru_stime, problem)


def print_stacks(pid: int, log: IO[Any] | None) -> None:
    """Prints the command of each process of a stage, and the stacks of processes of Python."""
    for process in tree(pid):
        try:
            name, words = process.name(), process.cmdline()
        except psutil.Error:
            continue  # it has just ended
        print(f"-- {process.pid}: {' '.join(words)[:300]}", file=log, flush=True)
        if "python" in name or "pytest" in name or "nox" in name:
            dump = [PY_SPY, "dump", "--pid", str(process.pid)]
            try:
                subprocess.run(dump, stdout=log, stderr=subprocess.STDOUT, timeout=60, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                # The stage must end even so.
                print(f"   its stacks are not available: {error}", file=log, flush=True)


def kill_tree(pid: int) -> None:
    for process in tree(pid):
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def tree(pid: int) -> list[psutil.Process]:
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def repeat(failed_tests: Path) -> list[str]:
    """Repeats the tests in a file, alone; returns the problems."""
    if not failed_tests.exists():
        return []
    flaky, problems = [], []
    for line in failed_tests.read_text().splitlines():
        failed = json.loads(line)
        again = failed_tests.with_suffix(".again")
        again.unlink(missing_ok=True)
        environment = {**os.environ, **failed["variables"], "SPARRING_FAILED_TESTS": str(again)}
        command = [failed["python"], "-m", "pytest", "-m", "", "-p", "no:cacheprovider"]
        print(f"== repeats {len(failed['tests'])} failed tests", flush=True)
        try:
            code = subprocess.run(
                [*command, *failed["tests"]],
                cwd=ROOT,
                env=environment,
                timeout=REPEAT_SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = 1
        # The run counts as passed although tests failed, if `again` contains them.
        lost = json.loads(again.read_text())["tests"] if again.exists() else []
        lost = failed["tests"] if code else lost
        problems += [f"FAILED {each}" for each in lost]
        flaky += [each for each in failed["tests"] if each not in lost]
    (REPORTS / "flaky.txt").write_text("".join(f"{each}\n" for each in flaky))
    print(*(f"FLAKY {each}" for each in flaky), sep="\n")
    if len(flaky) > MAX_FLAKY:
        problems.append(
            f"{len(flaky)} tests are flaky, more than {MAX_FLAKY}; reports/flaky.txt lists them"
        )
    return problems


if __name__ == "__main__":
    sys.exit(main())
