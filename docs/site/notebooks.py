"""Runs the notebooks of the documentation, and converts them to pages of the site.

    python docs/site/notebooks.py       # runs all notebooks and stores their outputs

Requires ``nbclient`` and ``ipykernel``.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs").glob("**/*.ipynb"))

# Lines of progress, whose number depends on the speed of the machine.
PROGRESS = "samples/s"

# Codes that control a terminal.
TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# First line of cells that contain shell commands; a failed command is an error.
SHELL = "%%bash -e\n"


def run_notebook(path: Path, folder: str | os.PathLike[str]) -> Any:
    """Returns a notebook with the outputs of running it in a new kernel.

    Raises:
        CellExecutionError: A cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    # Shell commands of the notebook are programs of this environment.
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=120, record_timing=False, resources={"metadata": {"path": folder}}
    )
    client.execute(env={**os.environ, "PATH": programs, "COLUMNS": "100"})
    return notebook


def texts_of(cell: Any) -> str:
    """Returns the text of all outputs of a cell."""
    texts = []
    for output in cell["outputs"]:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        texts += text if isinstance(text, list) else [text]
    lines = TERMINAL.sub("", "".join(texts)).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines if PROGRESS not in line)


def to_markdown(text: str) -> str:
    """Converts a notebook to Markdown, with the stored outputs of its cells."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            is_shell = source.startswith(SHELL)
            language = "sh" if is_shell else "python"
            parts.append(f"```{language}\n{source.removeprefix(SHELL)}\n```")
            output = texts_of(cell).rstrip()
            if output:
                parts.append(f"```text\n{output}\n```")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Runs all notebooks, each in a temporary folder, and stores their outputs."""
    import nbformat
    from nbformat.v4 import new_output

    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            notebook = run_notebook(path, folder)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                text = texts_of(cell)
                cell.outputs = [new_output("stream", name="stdout", text=text)] if text else []
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
