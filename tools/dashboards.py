"""Generates the dashboards for Grafana and the rules for Prometheus.

    python tools/dashboards.py     writes configs/grafana/*.json and configs/prometheus/rules.yaml

The dashboards are described in configs/grafana/panels.yaml. The rules come from the PrometheusRule in
configs/kubernetes/alarms.yaml, for a Prometheus without its operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

__all__ = [
    "FROM_ZERO",
    "Panel",
    "Query",
    "generated_files",
    "of_job",
    "panels_of",
    "read_dashboards",
]

ROOT = Path(__file__).parents[1]
PANELS = ROOT / "configs/grafana/panels.yaml"
ALARMS = ROOT / "configs/kubernetes/alarms.yaml"
RULES = ROOT / "configs/prometheus/rules.yaml"

_WIDTH, _HEIGHT, _LINE = 8, 8, 24
"""Default width and height of a panel, and width of a line, in units of Grafana."""

_KINDS = {"graph": "timeseries", "stacked": "timeseries", "stat": "stat", "bars": "bargauge"}

FROM_ZERO = ("percentunit", "s", "Bps", "bytes", "reqps")
"""Units of panels whose axis begins at 0."""

_DATA_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel."""

    legend: str
    query: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a dashboard."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    about: str = ""
    kind: str = "graph"
    width: int = _WIDTH


def read_dashboards() -> Mapping[str, Any]:
    """Returns name → description of each dashboard."""
    found: Mapping[str, Any] = YAML(typ="safe", pure=True).load(PANELS.read_text("utf-8"))
    return found


def panels_of(dashboard: Mapping[str, Any]) -> Iterator[Panel]:
    """Yields the panels of a dashboard."""
    for each in dashboard["panels"]:
        queries = tuple(Query(str(q["legend"]), q["query"]) for q in each["queries"])
        yield Panel(**{**each, "queries": queries})


def generated_files() -> dict[Path, str]:
    """Returns path → content of every file that this program writes."""
    found = {
        PANELS.parent / f"{name}.json": json.dumps(_dashboard(name, each), indent=1) + "\n"
        for name, each in read_dashboards().items()
    }
    return {**found, RULES: _rules()}


def _rules() -> str:
    for document in YAML(typ="safe", pure=True).load_all(ALARMS.read_text("utf-8")):
        if document["kind"] == "PrometheusRule":
            text = StringIO()
            yaml = YAML(pure=True)
            yaml.width, yaml.default_flow_style = 4096, False
            yaml.dump(document["spec"], text)
            return (
                "# Rules for Prometheus: rule_files: [rules.yaml]. tools/dashboards.py generates this "
                "file from\n# configs/kubernetes/alarms.yaml; docs/how-to/runbook.md explains each "
                "alarm.\n" + text.getvalue()
            )
    raise SystemExit(f"{ALARMS}: found no PrometheusRule, expected one")


def _dashboard(name: str, described: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uid": f"sparring-{name}",
        "title": described["title"],
        "tags": ["sparring"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "source",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "job",
                    "label": "Job",
                    "type": "query",
                    "datasource": _DATA_SOURCE,
                    "query": f"label_values({described['job']}, job)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "links": [
            {"type": "dashboards", "tags": ["sparring"], "title": "Sparring", "asDropdown": True}
        ],
        "panels": list(_placed(described)),
    }


def _placed(described: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    x = y = 0
    for number, each in enumerate(panels_of(described), start=1):
        if x + each.width > _LINE:
            x, y = 0, y + _HEIGHT
        place = {"x": x, "y": y, "w": each.width, "h": _HEIGHT}
        x += each.width
        yield {
            "id": number,
            "type": _KINDS[each.kind],
            "title": each.title,
            "description": each.about,
            "datasource": _DATA_SOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": _field(each), "overrides": []},
            "options": _options(each),
            "targets": [
                {
                    "refId": chr(ord("A") + letter),
                    "datasource": _DATA_SOURCE,
                    "expr": of_job(query.query),
                    "legendFormat": query.legend,
                    "instant": each.kind in ("stat", "bars"),
                    "range": each.kind not in ("stat", "bars"),
                }
                for letter, query in enumerate(each.queries)
            ],
        }


def of_job(query: str) -> str:
    """Adds the selector of the job to each metric."""
    query = re.sub(r"\b(sparring_\w+)\{", r'\1{job=~"$job",', query)
    return re.sub(r"\b(sparring_\w+)(?![\w{])", r'\1{job=~"$job"}', query)


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "stacked":
        field["custom"] = {"stacking": {"mode": "normal"}, "fillOpacity": 40}
    if panel.unit in FROM_ZERO:
        field["min"] = 0
    return field


def _options(panel: Panel) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "stat":
        return {"reduceOptions": last, "textMode": "value_and_name", "colorMode": "value"}
    if panel.kind == "bars":
        return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "gradient"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}


def main() -> None:
    for path, content in generated_files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
