"""Snapshots that somebody made to do harm: each must be refused, and nothing outside be touched.

The attacks are those of core's tests, which say of each what it is; here they are counted.
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
"""Each attack is made so often."""
_TESTS = Path(__file__).parents[1] / "packages/core/tests/snapshot/test_hostile.py"
_DEADLINE_SECONDS = 600


def run(trials: int) -> Report:
    """Makes each attack so many times."""
    refused = attempts = 0
    failures: list[str] = []
    for _ in range(trials):
        with tempfile.TemporaryDirectory(prefix="sparring-reliability-") as folder:
            found = Path(folder) / "found.xml"
            command = [sys.executable, "-m", "pytest", str(_TESTS), "-q", "-p", "no:cacheprovider"]
            done = subprocess.run(
                [*command, "-k", "test_a_hostile_snapshot_is_refused", f"--junitxml={found}"],
                capture_output=True,
                text=True,
                timeout=_DEADLINE_SECONDS,
                check=False,
            )
            if not found.exists():
                return Report(trials, {}, [f"pytest did not run: {done.stdout}{done.stderr}"])
            for case in ElementTree.parse(found).iter("testcase"):
                attempts += 1
                wrong = [each for each in case if each.tag in ("failure", "error", "skipped")]
                refused += not wrong
                failures += [f"{case.get('name')}: {each.get('message')}" for each in wrong]
    if not attempts:
        failures.append("no attack was made")
    return Report(attempts, {"hostile snapshots": attempts, "refused": refused}, failures)
