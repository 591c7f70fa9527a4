"""Tests that the guide for contributors names all sessions, and that its files exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def test_the_guide_names_exactly_the_sessions_that_exist() -> None:
    files = (ROOT / "noxfile.py", *(ROOT / "sessions").glob("*.py"))
    sessions = {
        node.name
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(each) for each in node.decorator_list)
    }
    assert set(re.findall(r"nox -s (\w+)", GUIDE)) == sessions


@pytest.mark.parametrize(
    "name", ["CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md"]
)
def test_linked_files_exist(name: str) -> None:
    targets = LINK.findall((ROOT / name).read_text())
    assert targets
    assert [each for each in targets if not ((ROOT / name).parent / each).exists()] == []


def test_templates_are_valid_yaml_with_required_keys() -> None:
    templates = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert [each.stem for each in templates] == ["bug", "feature", "question"]
    for template in templates:
        form = YAML(typ="safe").load(template)
        assert {"name", "description", "body"} <= set(form), template.name
        names = [each["id"] for each in form["body"] if each["type"] != "markdown"]
        assert len(names) == len(set(names)), template.name


def test_the_citation_has_the_version_of_core() -> None:
    citation = YAML(typ="safe").load(ROOT / "CITATION.cff")
    project = (ROOT / "packages/core/pyproject.toml").read_text()
    assert f'\nversion = "{citation["version"]}"\n' in project
    assert f'\nlicense = "{citation["license"]}"\n' in project
