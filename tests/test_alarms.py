"""Tests that the PrometheusRule has the alarms of the runbook, on metrics that servers export."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from .manifests import manifests, pod_of

PAGE = (Path(__file__).parents[1] / "docs/how-to/runbook.md").read_text()
ROW = re.compile(r"^\| \[`(\w+)`\]\(#\w+\) \| `(.+)` \| (\w+) \| (\w+) \|$", re.M)

(RULE,) = [each for each in manifests() if each.kind == "PrometheusRule"]
RULES = [rule for group in RULE.body["spec"]["groups"] for rule in group["rules"]]


def test_the_rule_and_the_runbook_have_the_same_alarms() -> None:
    on_page = [
        (name, expression.replace(r"\|", "|"), duration, severity)
        for name, expression, duration, severity in ROW.findall(PAGE)
    ]
    in_rule = [
        (each["alert"], each["expr"], each["for"], each["labels"]["severity"]) for each in RULES
    ]
    assert in_rule == on_page
    assert in_rule


def test_alarms_lead_to_their_sections_of_the_runbook() -> None:
    for each in RULES:
        section = PAGE.split(f"### {each['alert']}\n\n")[1]
        assert each["annotations"]["runbook"] == f"docs/how-to/runbook.md#{each['alert'].lower()}"
        assert " ".join(section.split()).startswith(each["annotations"]["summary"])


def test_metrics_of_alarms_are_exported() -> None:
    metrics = pytest.importorskip(
        "sparring_serve.metrics", reason="sparring-serve is not installed"
    )
    for each in RULES:
        found = re.findall(r"\b(sparring_\w+|up)\b", re.sub(r'"[^"]*"', "", each["expr"]))
        assert found, each["alert"]
        for name in found:
            if not name.startswith(("sparring_serving_", "up")):
                continue  # metrics of training runs: see test_dashboards
            short = name.removeprefix("sparring_serving_").removesuffix("_bucket")
            assert name == "up" or short in metrics.HELP, each["alert"]


def test_jobs_of_pod_monitors_have_the_name_that_the_first_alarm_selects() -> None:
    (pattern,) = re.findall(r'job=~"([^"]+)"', RULES[0]["expr"])
    monitors = [each for each in manifests() if each.kind == "PodMonitor"]
    # Each pod with metrics belongs to one service, so that an alarm per job compares its servers.
    scraped = [
        (each.name, template["metadata"]["labels"]["app"])
        for manifest in manifests()
        if (template := pod_of(manifest.body)) is not None
        and "metrics" in str(template["spec"]["containers"][0].get("ports"))
        for each in monitors
        if each.body["spec"]["selector"]["matchLabels"].items()
        <= template["metadata"]["labels"].items()
    ]
    assert set(scraped) == {("sparring-serve", "serve"), ("sparring-parameters", "parameters")}
    for each in monitors:
        # The operator builds the name of a job from namespace and monitor.
        assert re.fullmatch(pattern, f"default/{each.name}")


def test_prometheus_accepts_the_rule(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip(
            "promtool is not installed; on Debian and Ubuntu run: apt-get install prometheus"
        )
    file = tmp_path / "rules.yaml"
    with file.open("w") as stream:
        YAML(typ="safe", pure=True).dump(RULE.body["spec"], stream)
    ran = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{len(RULES)} rules found" in ran.stdout
