"""Two-tower and sequence models, compared with popularity, ALS of implicit, BPR and SASRec of RecBole.

``python -m benchmarks.recbole RATINGS [--seeds N] [--epochs N] [--models NAME,…]`` splits one file of
ratings, and prints a line per run and a table of means. `nox -s recbole` creates the environment. Peers
that ``--models`` excludes need not be installed.
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

from benchmarks.recbole_split import BATCH_SIZE, DIM, PARTS, prepare
from sparring_train import load_config

__all__: list[str] = []

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
METRICS = ("recall@10", "ndcg@10", "mrr@10")

# Maximum epochs of RecBole's models: they stop after 30 epochs without a better validation MRR@10, and
# the best model is tested.
RECBOLE = {"BPR": 300, "SASRec": 60}
IMPLICIT = ("popularity", "ALS")

# The configuration, the section `data`, and overrides of other keys. Two-tower models use their file
# unchanged; the prepared rows have no label to compare with `model.positive`. Epochs and dropout of the
# sequence model were chosen with the validation part.
OURS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "two_towers": (
        "two-towers.yaml",
        {"categorical": ["user", "item"]},
        {"model.positive": None, "model.user": ["user"], "model.item": ["item"]},
    ),
    "sequence": (
        "sequence.yaml",
        {
            "categorical": ["user", "item", "history"],
            "lists": ["history"],
            "share_tables": {"history": "item"},
            "batch_size": BATCH_SIZE,
        },
        {
            "model.user": "user",
            "model.item": "item",
            "model.embedding_dim": DIM,
            "model.dropout": 0.5,
            "training.epochs": 30,
        },
    ),
}
MODELS = (*OURS, *RECBOLE, *IMPLICIT)


def main(arguments: Sequence[str]) -> int:
    """Prints the runs and their means."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recbole")
    parser.add_argument("ratings", type=Path, help="ratings.csv of MovieLens")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs per model")
    parser.add_argument("--epochs", type=int, help="maximum number of epochs, for a short test")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated models to run")
    parser.add_argument(
        "--part",
        choices=tuple(PARTS),
        default="test",
        help="valid ranks the validation; refit ranks the test and trains on the validation, too",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--length", type=int, default=10, help="length of histories; RecBole's default: 50"
    )
    parser.add_argument(
        "--blocks", type=int, default=1, help="attention blocks; RecBole's default: 2"
    )
    parser.add_argument("overrides", nargs="*", help="overrides of our configurations")
    given = parser.parse_intermixed_args(arguments)
    models = given.models.split(",")
    if given.part != "test" and not RECBOLE.keys().isdisjoint(models):
        parser.error(f"--part {given.part} needs --models without {', '.join(RECBOLE)}")
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        split = prepare(given.ratings, Path(folder), length=given.length)
        console.print(
            f"{len(split.users):,} interactions of {len(set(split.users.tolist())):,} users with "
            f"{len(set(split.items.tolist())):,} items"
        )
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(1, given.seeds + 1):
            for model in models:
                command = (ours if model in OURS else theirs)(Path(folder), model, seed, given)
                result = last_line(command, Path(folder))
                row = {name: result["metrics"][name] for name in METRICS}
                epochs = result.get("epochs") or epochs_of(model, given)
                row |= {"seconds": result["seconds"], "epochs": epochs}
                found.setdefault(model, []).append(row)
                console.print(
                    model, f"seed {seed}", {name: round(value, 4) for name, value in row.items()}
                )
    console.print(table_of(found))
    return 0


def epochs_of(model: str, given: argparse.Namespace) -> int:
    """Returns the maximum number of epochs of a run."""
    own = RECBOLE.get(model)
    if own is None:
        config, _, overrides = OURS[model]
        own = overrides.get("training.epochs", load_config(CONFIGS / config).training.epochs)
    return min(own, given.epochs or own)


def theirs(folder: Path, model: str, seed: int, given: argparse.Namespace) -> list[str]:
    """Returns the command that runs a peer. RecBole reports the number of epochs of its best model."""
    settings = {"seed": seed, "threads": given.threads}
    if model in RECBOLE:
        program = "recbole_process"
        settings |= {
            "epochs": epochs_of(model, given),
            "length": given.length,
            "blocks": given.blocks,
        }
    else:
        program = "implicit_process"
        settings |= {"part": given.part}
    options = [f"--{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", f"benchmarks.peers.{program}", str(folder), model, *options]


def ours(folder: Path, model: str, seed: int, given: argparse.Namespace) -> list[str]:
    """Returns the command that runs one of our models."""
    config, data, overrides = OURS[model]
    data = {
        "kind": "table", "path": str(folder / f"{given.part}.parquet"),
        "required": ["user", "item"], "split": {"column": "fold"},
        "batch_size": load_config(CONFIGS / config).data.batch_size, **data,
    }  # fmt: skip
    overrides = {
        **overrides, "data": data, "seed": seed, "training.epochs": epochs_of(model, given),
        "threads": given.threads,
    }  # fmt: skip
    if model == "sequence":
        overrides |= {"model.length": given.length, "model.blocks": given.blocks}
    # JSON is valid YAML.
    words = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    program = [sys.executable, "-m", "sparring", "train", str(CONFIGS / config)]
    return [*program, *words, *given.overrides, "--json"]


def last_line(command: list[str], folder: Path) -> Any:
    """Runs a program in the folder, in which it may leave files, and parses its last line as JSON."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{ran.stderr}")
    return json.loads(ran.stdout.splitlines()[-1])


def table_of(found: dict[str, list[dict[str, float]]]) -> Table:
    """Formats the means over seeds, and the deviation between seeds."""
    table = Table("model", *METRICS, "seconds", "epochs", "seeds")
    for model, runs in found.items():
        means = [spread([each[name] for each in runs]) for name in METRICS]
        rest = [f"{mean(each[name] for each in runs):.0f}" for name in ("seconds", "epochs")]
        table.add_row(model, *means, *rest, str(len(runs)))
    return table


def spread(values: list[float]) -> str:
    """Formats the mean and standard deviation."""
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
