"""The runbook has alarms on existing metrics, and for each the steps and commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import sparring_serve
from sparring_serve.metrics import HELP
from sparring_serve.status import Status

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


def test_metrics_of_alarms_exist() -> None:
    assert len({each.name for each in alarms()}) == len(alarms()) >= 16
    for each in alarms():
        names = re.findall(r"sparring_serving_(\w+)", each.expression)
        names = [re.sub(r"_bucket$", "", name) for name in names]
        assert set(names) <= set(HELP), each.name
        assert names or each.expression.startswith("up{") or "sparring_" in each.expression
    # The text names no others, either.
    named = set(re.findall(r"`sparring_serving_(\w+)`", PAGE))
    assert named <= set(HELP)


def test_each_alarm_has_a_section_with_steps() -> None:
    sections = dict(re.findall(r"^### (\w+)\n\n(.*?)(?=^### |\Z)", PAGE, re.M | re.S))
    assert sections.keys() == {each.name for each in alarms()}
    for name, text in sections.items():
        assert re.search(r"^- |Save soon", text, re.M), name


def test_labels_that_alarms_select_are_exported_by_servers() -> None:
    source = "".join(path.read_text() for path in Path(sparring_serve.__path__[0]).rglob("*.py"))
    reasons = set(re.findall(r'reason="(\w+)"', source))
    checked = 0
    for each in alarms():
        for label, values in re.findall(r'(\w+)=~"([\w|]+)"', each.expression):
            known = reasons if label == "reason" else {status.value for status in Status}
            assert set(values.split("|")) <= known, each.name
            checked += 1
    assert checked == 3
