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

from benchmarks.recbole_split import BATCH_SIZE, DIM, prepare

__all__: list[str] = []

ROOT = Path(__file__).parents[1]
METRICS = ("recall@10", "ndcg@10", "mrr@10")

# Epochs of ours are fixed, those of the sequence model and its dropout by what the validation gave;
# RecBole's stop early, after 30 epochs without a better MRR@10 there, and the best are tested.
EPOCHS = {"two_towers": 6, "sequence": 30, "BPR": 300, "SASRec": 60}
THEIRS = ("BPR", "SASRec")

# The configuration, and what is another in its sections `data` and `model`.
OURS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "two_towers": ("two-towers.yaml", {"categorical": ["user", "item"], "batch_size": 2048}, {}),
    "sequence": (
        "sequence.yaml",
        {
            "categorical": ["user", "item", "history"],
            "lists": ["history"],
            "share_tables": {"history": "item"},
            "batch_size": BATCH_SIZE,
        },
        {"user": "user", "dropout": 0.5},
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
    parser.add_argument("--length", type=int, default=10, help="of histories; RecBole's own: 50")
    parser.add_argument("--blocks", type=int, default=1, help="of attention; RecBole's own: 2")
    parser.add_argument("overrides", nargs="*", help="of our configurations")
    given = parser.parse_args(arguments)
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        split = prepare(given.ratings, Path(folder), length=given.length)
        console.print(
            f"{len(split.users):,} interactions of {len(set(split.users.tolist())):,} users with "
            f"{len(set(split.items.tolist())):,} items"
        )
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(1, given.seeds + 1):
            for model in given.models.split(","):
                command = (theirs if model in THEIRS else ours)(Path(folder), model, seed, given)
                result = last_line(command, Path(folder))
                metrics = result.pop("metrics")
                row = {name: metrics[name] for name in METRICS}
                row |= {
                    "seconds": result["seconds"],
                    "epochs": result.get("epochs", epochs_of(model, given)),
                }
                found.setdefault(model, []).append(row)
                console.print(
                    model, f"seed {seed}", {name: round(value, 4) for name, value in row.items()}
                )
    console.print(table_of(found))
    return 0


def epochs_of(model: str, given: argparse.Namespace) -> int:
    """Of a run, at most."""
    return min(EPOCHS[model], given.epochs or EPOCHS[model])


def theirs(folder: Path, model: str, seed: int, given: argparse.Namespace) -> list[str]:
    """The command of a run of RecBole, whose epochs are those until the best one."""
    settings = {"seed": seed, "epochs": epochs_of(model, given), "threads": given.threads}
    settings |= {"length": given.length, "blocks": given.blocks}
    options = [f"--{name}={value}" for name, value in settings.items()]
    program = [sys.executable, "-m", "benchmarks.peers.recbole_process"]
    return [*program, str(folder), model, *options]


def ours(folder: Path, model: str, seed: int, given: argparse.Namespace) -> list[str]:
    """The command of a run of ours."""
    config, data, section = OURS[model]
    if model == "sequence":
        section |= {"length": given.length, "blocks": given.blocks}
    data = {
        "kind": "table", "path": str(folder / "test.parquet"), "required": ["user", "item"],
        "split": {"column": "fold"}, **data,
    }  # fmt: skip
    overrides = {
        "data": data, "model": {"kind": model, "embedding_dim": DIM, **section}, "seed": seed,
        "training.epochs": epochs_of(model, given), "threads": given.threads,
    }  # fmt: skip
    # JSON is YAML.
    words = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    program = [sys.executable, "-m", "sparring", "train", str(ROOT / "configs" / config)]
    return [*program, *words, *given.overrides, "--json"]


def last_line(command: list[str], folder: Path) -> Any:
    """What a program prints last, as JSON. It may leave files in the folder, as RecBole's logs."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
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
