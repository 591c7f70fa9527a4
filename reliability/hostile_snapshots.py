"""Malicious snapshots: each must be rejected, and nothing outside the folder may be changed.

The attacks are those of core's tests, which describe them; here they are counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from reliability.report import Report

__all__ = ["TRIALS", "run"]

TRIALS = 1
"""Number of runs of each attack."""
_TESTS = Path(__file__).parents[1] / "packages/core/tests/snapshot/test_hostile.py"
_DEADLINE_SECONDS = 600


def run(trials: int) -> Report:
    """Runs each attack the given number of times."""
    refused = attempts = 0
    failures: list[str] = []
    for _ in range(trials):
        with tempfile.TemporaryDirectory(prefix="sparring-reliability-") as folder:
            found = Path(folder) / "found.xml"
            command = [sys.executable, "-m", "pytest", str(_TESTS), "-q", "-p", "no:cacheprovider"]
            done = subprocess.run(
                [*command, "-k", "test_a_hostile_snapshot_is_rejected", f"--junitxml={found}"],
                capture_output=True,
                text=True,
                timeout=_DEADLINE_SECONDS,
                check=False,
            )
            if not found.exists():
                return Report(trials, {}, [f"pytest failed to run: {done.stdout}{done.stderr}"])
            for case in ElementTree.parse(found).iter("testcase"):
                attempts += 1
                wrong = [each for each in case if each.tag in ("failure", "error", "skipped")]
                refused += not wrong
                failures += [f"{case.get('name')}: {each.get('message')}" for each in wrong]
    if not attempts:
        failures.append("no attack was run")
    return Report(attempts, {"hostile snapshots": attempts, "refused": refused}, failures)
