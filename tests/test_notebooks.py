"""Tests that notebooks and a tutorial run, and that the outputs in them are up to date."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs/site"))

from notebooks import NOTEBOOKS, run_notebook, texts_of, to_markdown  # noqa: E402


def lines_of(text: str) -> list[str]:
    """Returns the lines of an output without numbers, which may depend on the machine."""
    return [" ".join(re.sub(r"\d[\d.,]*", "#", line).split()) for line in text.splitlines()]


@pytest.mark.slow  # each starts a kernel and trains
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_stored_outputs_are_up_to_date(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = json.loads(path.read_text())["cells"]
    for before, after in zip(stored, run_notebook(path, tmp_path).cells, strict=True):
        if after.cell_type == "code":
            assert lines_of(texts_of(after)) == lines_of(texts_of(before)), (
                f"the output of this cell has changed; run python docs/site/notebooks.py\n{after.source}"
            )


def test_a_page_contains_the_cells_and_their_outputs() -> None:
    output = {
        "output_type": "stream",
        "name": "stdout",
        "text": ["\x1b[1m2\x1b[0m \n", "9 samples/s"],
    }
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text"]},
        {"cell_type": "code", "source": ["print(2)"], "outputs": [output]},
        {"cell_type": "code", "source": ["%%bash -e\n", "sparring doctor"], "outputs": []},
    ]
    assert to_markdown(json.dumps({"cells": cells})) == (
        "# Title\nText\n\n```python\nprint(2)\n```\n\n```text\n2\n```\n\n```sh\nsparring doctor\n```\n"
    )


@pytest.mark.long
def test_the_tutorial_on_ranks_shows_the_outputs_of_its_commands(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/quickstart.yaml").write_text(
        (ROOT / "configs/quickstart.yaml").read_text()
    )
    page = (ROOT / "docs/tutorial/many-ranks.md").read_text()
    output = ""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for language, code in re.findall(r"^```(sh|python|text)\n(.*?)^```", page, re.M | re.S):
        if language == "text":
            assert set(lines_of(code)) <= set(lines_of(output))
        else:
            program = ["bash", "-ec"] if language == "sh" else [sys.executable, "-c"]
            output = subprocess.run(
                [*program, code], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
            ).stdout
    assert "step-000000000025" in output
