"""Settings for all tests of this checkout."""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).parent

EXACT = (
    "packages/_template/", "packages/backend-", "packages/core/tests/checkpoint/",
    "packages/core/tests/exchange/", "packages/core/tests/kernels/", "packages/core/tests/sharding/",
    "packages/core/tests/snapshot/", "packages/core/tests/storage/", "packages/core/tests/updates/",
    "packages/framework-torch/tests/test_ranks.py", "packages/packed/",
    "packages/serve/tests/parameters/", "packages/serve/tests/replication/", "packages/storage-tiered/",
    "packages/train/tests/keras/test_resuming.py", "packages/train/tests/pytorch/test_resuming.py",
    "packages/train/tests/pytorch/test_returns.py",
)  # fmt: skip
"""Tests that compare rows, versions, acknowledged pushes or snapshots have the mark `exact`."""

MAX_REPEATED = 20
"""Maximum number of failed tests that are repeated: more have a common reason."""

# On a busy machine an example takes longer than hypothesis allows by default.
hypothesis.settings.register_profile(
    "busy",
    parent=hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        action="store_true",
        help="list the tests that take more than a second of processor time; without -n",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Searches each state of ``sys.path`` for plugins once: tests create thousands of plugin managers."""
    from sparring.plugins import registry
    from sparring.plugins.distributions import PluginSource, find_plugins

    @functools.cache
    def find(only: str | None, *_: object) -> tuple[PluginSource, ...]:
        return tuple(find_plugins(only))

    def find_once(only: str | None = None) -> Iterator[PluginSource]:
        # A folder is modified when a distribution is installed in it.
        modified = (
            Path(each).stat().st_mtime_ns if Path(each).exists() else 0 for each in sys.path
        )
        return iter(find(only, metadata.distributions, *sys.path, *modified))

    registry.find_plugins = find_once
    if config.getoption("costs"):
        config.pluginmanager.register(Costs())
    # Removed, because tests may start pytest.
    file = os.environ.pop("SPARRING_FAILED_TESTS", None)
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(Path(file)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = ROOT / "tests/museum.py"  # not in copies of this file that tests of the settings make
    reports = runpy.run_path(str(listed))["REPORTS"] if listed.exists() else ()
    museum = {test for report in reports for test in report.tests}
    for each in items:
        if each.nodeid.startswith(EXACT):
            each.add_marker("exact")
        if isinstance(each, pytest.Function):
            # The last part, because standard tests belong to an installed module.
            module = each.function.__module__.rpartition(".")[2]
            if f"{module}::{each.originalname}" in museum:
                each.add_marker("museum")


class Costs:
    """Measures the processor time of each test, of its fixtures, and of the processes that it ended."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = sum(os.times()[:4]) - before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        expensive = sorted(
            (seconds, name) for name, seconds in self._seconds.items() if seconds > 1
        )
        terminalreporter.section("tests that take more than 1 s of processor time")
        for seconds, name in reversed(expensive):
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")
        total = sum(self._seconds.values())
        terminalreporter.write_line(f"all {len(self._seconds)} tests: {total:.0f} s")


class FailedTests:
    """Writes failed tests to a file, for `tools/ci.py`, which repeats each of them once at its end.

    The run then counts as passed, unless one of them has the mark `exact`.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests: dict[str, bool] = {}
        self._is_complete = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # The report of a crashed worker has no keywords.
            is_exact = "exact" in report.keywords or report.nodeid.startswith(EXACT)
            self._tests[report.nodeid] = is_exact

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._is_complete &= not report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        is_repeatable = 0 < len(self._tests) <= MAX_REPEATED and not any(self._tests.values())
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not is_repeatable:
            return
        if self._is_complete:
            variables = {
                name: value
                for name, value in os.environ.items()
                if name == "PATH" or name.startswith("SPARRING_")
            }
            failed: dict[str, Any] = {
                "python": sys.executable,
                "variables": variables,
                "tests": sorted(self._tests),
            }
            with self._file.open("a") as file:
                file.write(json.dumps(failed) + "\n")
            session.exitstatus = pytest.ExitCode.OK
