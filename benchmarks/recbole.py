"""Two towers and the sequence model next to RecBole's BPR and SASRec, on one split of one file.

``python -m benchmarks.recbole RATINGS [--seeds N] [--epochs N] [--models NAME,…]`` prints a line for each
run, and a table of means. `nox -s recbole` makes the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.recbole_split import BATCH_SIZE, DIM, LENGTH, prepare

__all__: list[str] = []

ROOT = Path(__file__).parents[1]
METRICS = ("recall@10", "ndcg@10", "mrr@10")

# Epochs of ours were chosen on the validation, with seed 1; RecBole's stop early, by default after
# ten epochs without a better MRR@10 there.
EPOCHS = {"two_towers": 6, "sequence": 14, "BPR": 300, "SASRec": 60}
THEIRS = ("BPR", "SASRec")

OURS = {
    "two_towers": (
        "two-towers.yaml",
        "[user, item]",
        "batch_size: 2048",
        f"model={{kind: two_towers, embedding_dim: {DIM}}}",
        "optimizer.sparse={name: adam, lr: 0.01}",
    ),
    "sequence": (
        "sequence.yaml",
        "[user, item, history]",
        f"batch_size: {BATCH_SIZE}, lists: [history], share_tables: {{history: item}}",
        f"model={{kind: sequence, user: user, length: {LENGTH}, embedding_dim: {DIM}, dropout: 0.3}}",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Prints the runs and their means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recbole")
    parser.add_argument("ratings", type=Path, help="ratings.csv of MovieLens")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model")
    parser.add_argument("--epochs", type=int, help="at most, for a short try")
    parser.add_argument("--models", default=",".join(EPOCHS), help="some of these, with commas")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--fold", choices=("test", "valid"), default="test", help="of ours")
    parser.add_argument("overrides", nargs="*", help="of our configurations")
    given = parser.parse_args(arguments)
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        split = prepare(given.ratings, Path(folder))
        console.print(
            f"{len(split.users):,} interactions of {len(set(split.users.tolist())):,} users with "
            f"{len(set(split.items.tolist())):,} items"
        )
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(1, given.seeds + 1):
            for model in given.models.split(","):
                epochs = min(EPOCHS[model], given.epochs or EPOCHS[model])
                run = theirs if model in THEIRS else ours
                result = run(Path(folder), model, seed, epochs, given)
                found.setdefault(model, []).append(result)
                console.print(model, f"seed {seed}", {k: round(v, 4) for k, v in result.items()})
    console.print(table_of(found))
    return 0


def theirs(
    folder: Path, model: str, seed: int, epochs: int, given: argparse.Namespace
) -> dict[str, float]:
    """A run of RecBole: metrics of the test, seconds of training, the epoch that was best."""
    words = (str(folder), model, str(seed), str(epochs), str(given.threads))
    return last_line([sys.executable, "-m", "benchmarks.peers.recbole_process", *words], folder)


def ours(
    folder: Path, model: str, seed: int, epochs: int, given: argparse.Namespace
) -> dict[str, float]:
    """A run of `sparring train`: metrics of the test, seconds of all of it, its epochs."""
    config, columns, data, *changes = OURS[model]
    path = folder / f"{given.fold}.parquet"
    section = (
        f"{{kind: table, path: {path}, categorical: {columns}, required: [user, item], "
        f"split: {{column: fold}}, {data}}}"
    )
    command = [
        sys.executable, "-m", "sparring", "train", str(ROOT / "configs" / config), f"seed={seed}",
        f"data={section}", *changes, f"training.epochs={epochs}", f"threads={given.threads}",
        *given.overrides, "--json",
    ]  # fmt: skip
    result = last_line(command, folder)
    metrics = {name: result["metrics"][name] for name in METRICS}
    return {**metrics, "seconds": result["seconds"], "epochs": epochs}


def last_line(command: list[str], folder: Path) -> Any:
    """What a program prints last, as JSON. It may leave files in the folder, as RecBole's logs."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


def table_of(found: dict[str, list[dict[str, float]]]) -> Table:
    """Means over seeds, and how far seeds are apart."""
    table = Table("model", *METRICS, "seconds", "epochs", "seeds")
    for model, runs in found.items():
        means = [spread([each[name] for each in runs]) for name in METRICS]
        rest = [f"{mean(each[name] for each in runs):.0f}" for name in ("seconds", "epochs")]
        table.add_row(model, *means, *rest, str(len(runs)))
    return table


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
