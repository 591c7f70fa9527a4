"""The translation of docs/how-to/come-from-torchrec.md, on a program with TorchRec's imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "torchrec_program.py"
PAGE = Path(__file__).parents[4] / "docs/how-to/come-from-torchrec.md"


def test_a_program_of_torchrec_runs_after_the_translation_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.read_text())
    (command,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True)
    translated = (tmp_path / "train.py").read_text()
    assert not re.search(r"^ *(from|import) (torchrec|fbgemm_gpu)", translated, re.M)
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    ran = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **where, "MASTER_ADDR": "localhost", "MASTER_PORT": "29571"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "done"
