"""The runbook has alarms on metrics that exist, and says of each what to look at and what to type."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from sparring_serve.metrics import HELP

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/runbook.md").read_text()


class Alarm(NamedTuple):
    name: str
    expression: str
    duration: str
    severity: str


def alarms() -> list[Alarm]:
    row = re.compile(r"^\| \[`(\w+)`\]\(#(\w+)\) \| `(.+)` \| (\d+m) \| (page|ticket) \|$", re.M)
    found = []
    for name, anchor, expression, duration, severity in row.findall(PAGE):
        assert anchor == name.lower()
        found.append(Alarm(name, expression.replace(r"\|", "|"), duration, severity))
    return found


def test_alarms_are_on_metrics_that_exist() -> None:
    assert len({each.name for each in alarms()}) == len(alarms()) >= 16
    for each in alarms():
        names = re.findall(r"sparring_serving_(\w+)", each.expression)
        names = [re.sub(r"_bucket$", "", name) for name in names]
        assert set(names) <= set(HELP), each.name
        assert names or each.expression.startswith("up{"), each.name
    # The text names no others, either.
    named = set(re.findall(r"`sparring_serving_(\w+)`", PAGE))
    assert named <= set(HELP)


def test_each_alarm_has_a_section_with_steps() -> None:
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^### |\Z)", PAGE, re.M | re.S))
    assert sections.keys() == {each.name for each in alarms()}
    for name, text in sections.items():
        assert re.search(r"^- |Save soon", text, re.M), name


def test_prometheus_accepts_the_expressions(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here; Debian and Ubuntu: apt-get install prometheus")
    rules = "".join(
        f"  - alert: {each.name}\n    for: {each.duration}\n    labels: {{severity: {each.severity}}}\n"
        f"    expr: '{each.expression}'\n"
        for each in alarms()
    )
    file = tmp_path / "rules.yaml"
    file.write_text(f"groups:\n- name: sparring\n  rules:\n{rules}")
    ran = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{len(alarms())} rules found" in ran.stdout
