"""A program with TorchRec's imports, translated as docs/how-to/come-from-torchrec.md describes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..forked_ranks import run_forked_ranks

PROGRAM = Path(__file__).parent / "torchrec_program.py"
PAGE = Path(__file__).parents[4] / "docs/how-to/come-from-torchrec.md"


def run_torchrun(program: Path, num_ranks: int) -> str:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    ran = subprocess.run(
        [sys.executable, *launch, program.name],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,  # the assertion below shows its output
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program after the translation of the page."""
    translated = tmp_path / "train.py"
    translated.write_text(PROGRAM.read_text())
    (command,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    return translated


def test_the_translation_of_the_page_replaces_every_import_of_torchrec(program: Path) -> None:
    text = program.read_text()
    compile(text, program, "exec")
    assert not re.search(r"^ *(from|import) (torchrec|fbgemm_gpu)", text, re.M)
    assert re.search(r"^ *from sparring_torch", text, re.M)


@pytest.mark.parametrize(
    ("launch", "num_ranks"),
    [
        pytest.param(run_forked_ranks, 2, id="forked-2", marks=pytest.mark.slow),
        pytest.param(run_torchrun, 1, id="torchrun-1", marks=pytest.mark.long),
        pytest.param(run_torchrun, 2, id="torchrun-2", marks=pytest.mark.long),
    ],
)
def test_a_program_of_torchrec_runs_after_the_translation_of_the_page(
    launch: Callable[[Path, int], str], num_ranks: int, program: Path
) -> None:
    assert launch(program, num_ranks).count("done") == num_ranks
