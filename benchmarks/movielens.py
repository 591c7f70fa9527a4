"""The RMSE of biased matrix factorization on MovieLens ml-latest-small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.measuring import Figure
from benchmarks.scale import Scale

__all__ = ["measure"]

ROOT = Path(__file__).parents[1]
BAR_RMSE, BAR_SECONDS = 0.88, 60


def measure(_scale: Scale) -> list[Figure]:
    """Runs the command line, as a user would."""
    data = Path(os.environ.get("SPARRING_TEST_DATA", ROOT.parent / "shared" / "data"))
    ratings = data / "ml-latest-small" / "ratings.csv"
    if not ratings.exists():
        return [
            Figure(
                "MovieLens test RMSE",
                "not measured",
                detail=f"requires {ratings}; set SPARRING_TEST_DATA to another folder",
            )
        ]
    start = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "sparring", "train", str(ROOT / "configs/movielens.yaml"),
         f"data.path={ratings}", "report.path=null", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if ran.returncode:
        raise RuntimeError(f"sparring train failed:\n{ran.stderr}")
    result = json.loads(ran.stdout.splitlines()[-1])
    rmse = result["metrics"]["rmse"]
    rows = ", ".join(f"{table} {count:,}" for table, count in result["rows"].items())
    return [
        Figure(
            "MovieLens test RMSE, seeded random 90/10 split",
            f"{rmse:.4f}",
            f"<= {BAR_RMSE}",
            rmse <= BAR_RMSE,
            f"rows: {rows}",
        ),
        Figure(
            "  the whole command",
            f"{seconds:.1f} s",
            f"< {BAR_SECONDS} s",
            seconds < BAR_SECONDS,
            "start of Python to its end",
        ),
    ]
