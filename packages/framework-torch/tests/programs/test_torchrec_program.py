"""A program with TorchRec's imports, translated as docs/how-to/come-from-torchrec.md describes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "torchrec_program.py"
PAGE = Path(__file__).parents[4] / "docs/how-to/come-from-torchrec.md"


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_program_of_torchrec_runs_after_the_translation_of_the_page(
    ranks: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.read_text())
    (command,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    translated = (tmp_path / "train.py").read_text()
    assert not re.search(r"^ *(from|import) (torchrec|fbgemm_gpu)", translated, re.M)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    ran = subprocess.run(
        [sys.executable, *launch, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines().count("done") == ranks
