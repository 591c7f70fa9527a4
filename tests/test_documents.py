"""Every Python block of the documentation runs, or says why not; every relative link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "packages/*/README.md")
    for path in ROOT.glob(pattern)
)

# A block that cannot run is preceded by: <!-- not run: the reason -->
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*?) -->\n)?^```python\n(?P<code>.*?)^```", re.M | re.S
)
OPENED = re.compile(r"open_storage\(\"(\w+)\"")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_the_python_blocks_of_a_document_run_in_order(path: Path, tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer(path.read_text()))
    for block in blocks:
        reason = block["reason"]
        assert reason is None or reason.strip(), (
            f"{name_of(path)}: a block is not run without a reason"
        )
    code = "\n".join(block["code"] for block in blocks if block["reason"] is None)
    if not code:
        return
    for backend in OPENED.findall(code):
        if backend != "memory" and find_spec(f"sparring_{backend}") is None:
            pytest.skip(f"needs sparring-{backend}, which is not installed")
    script = tmp_path / "blocks.py"
    script.write_text(code)
    ran = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, f"{name_of(path)}:\n{ran.stderr}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    for target in LINK.findall(text):
        assert (path.parent / target).exists(), f"{name_of(path)}: {target} is missing"
