"""Tests that every Python block of the documentation runs or gives a reason, and that links are valid."""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
from pathlib import Path

import pytest

from sparring import contracts
from sparring_train.built_in_kinds import model_kinds

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "packages/*/README.md")
    for path in ROOT.glob(pattern)
)
NOTEBOOKS = sorted(ROOT.glob("docs/**/*.ipynb"))

# A block that cannot run is preceded by: <!-- not run: the reason -->
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]*?) -->\n)?^```python\n(?P<code>.*?)^```", re.M | re.S
)
# A document whose blocks require an optional package contains: <!-- needs: tensorflow -->
NEEDS = re.compile(r"<!-- needs: (\w+) -->")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")

# Documents run in processes that start with the imports of most of them, because these take longer than
# the documents.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.utils.data",
        "sparring_torch.modules",
        "sparring_train",
        "sparring_hkv",
    ]
)
RUN = """
import os, runpy, sys
os.chdir(folder)
output = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
os.dup2(output, 1)
os.dup2(output, 2)
sys.argv = [script]
sys.path.insert(0, folder)
runpy.run_path(script, run_name="__main__")
"""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# All documents together take minutes, so only the README is tested after each change.
@pytest.mark.parametrize(
    "path",
    [
        path if path == ROOT / "README.md" else pytest.param(path, marks=pytest.mark.slow)
        for path in DOCUMENTS
        if BLOCK.search(path.read_text())
    ],
    ids=name_of,
)
def test_the_python_blocks_of_a_document_run_in_order(path: Path, tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer(path.read_text()))
    for block in blocks:
        reason = block["reason"]
        assert reason is None or reason.strip(), (
            f"{name_of(path)}: a block is not run without a reason"
        )
    for needed in NEEDS.findall(path.read_text()):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{name_of(path)} needs {needed}, which is not installed here")
    code = "\n".join(block["code"] for block in blocks if block["reason"] is None)
    if not code:
        return
    script = tmp_path / "blocks.py"
    script.write_text(code)
    names = {"folder": str(tmp_path), "script": str(script)}
    process = FORKSERVER.Process(target=exec, args=(RUN, names))
    process.start()
    process.join(300)
    process.kill()
    process.join()
    assert process.exitcode == 0, f"{name_of(path)}:\n{(tmp_path / 'output.txt').read_text()}"


def test_the_page_about_storages_lists_all_optional_parts() -> None:
    page = (ROOT / "docs/reference/storage.md").read_text()
    parts = [name for name in contracts.__all__ if name.startswith("Supports")]
    assert sorted(re.findall(r"^\| `(Supports\w+)` \|", page, re.M)) == sorted(parts)


def test_the_page_about_features_lists_the_kinds_of_models() -> None:
    page = (ROOT / "docs/reference/features.md").read_text()
    row = re.search(r"^\| `sparring train`: (.*?) \| yes \| yes \| no \|$", page, re.M)
    assert row is not None
    kinds = model_kinds()
    assert re.findall(r"`(\w+)`", row[1]) == [each.name for each in kinds]
    assert all(set(each.build) == {"torch", "tensorflow"} for each in kinds)


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    for target in LINK.findall(text):
        assert (path.parent / target).exists(), f"{name_of(path)}: {target} is missing"
