"""``sparring evaluate`` and ``sparring predict``: ask the model that a snapshot has."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from sparring import context_of, make_console, print_json
from sparring.errors import DataError, InvalidArgumentError
from sparring_train.cli.get import snapshot_at
from sparring_train.cli.train import OverridesArgument
from sparring_train.hookspecs import OpenedModel
from sparring_train.loop.saved_model import evaluated
from sparring_train.saved_run import opened_run

__all__ = ["SnapshotArgument", "add_evaluate", "add_predict"]

SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A snapshot of a run, or a folder of them: the newest is taken.",
        show_default=False,
    ),
]


def add_evaluate(application: typer.Typer) -> None:
    application.command("evaluate")(evaluate)


def add_predict(application: typer.Typer) -> None:
    application.command("predict")(predict)


def evaluate(
    context: typer.Context,
    snapshot: SnapshotArgument,
    overrides: OverridesArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Print the metrics of a saved model on the test examples of its run."""
    found = snapshot_at(snapshot)
    with opened_run(found, overrides or [], context_of(context).plugin_manager) as (_, model):
        metrics, undefined = evaluated(model), model.source.why_undefined
    if as_json:
        told = {"snapshot": found.url, "step": found.step, "metrics": metrics}
        print_json(told if undefined is None else {**told, "undefined_metrics": undefined})
        return
    console = make_console()
    console.print(f"{found.url}, step {found.step:,}", markup=False, soft_wrap=True)
    for name, value in metrics.items():
        console.print(f"test {name}  {value:.4f}", markup=False)
    if undefined is not None:
        console.print(f"undefined metrics: {undefined}", markup=False, soft_wrap=True)


def predict(
    context: typer.Context,
    snapshot: SnapshotArgument,
    path: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="Examples: a file with the columns of the data of the run."
        ),
    ],
    overrides: OverridesArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A file to write: .csv or .parquet. Without it, print."
        ),
    ] = None,
) -> None:
    """Print or write a prediction for each example of a file, in its order."""
    if output is not None and output.suffix not in (".csv", ".parquet"):
        raise InvalidArgumentError(
            f"--output {output}: must end in .csv or .parquet, which says how it is written"
        )
    found = snapshot_at(snapshot)
    with opened_run(found, overrides or [], context_of(context).plugin_manager) as (config, model):
        if config.model.loss == "ranking":
            raise InvalidArgumentError(
                f"{found.url}: its model ranks items and predicts no number; ask it for the best items: "
                "sparring recommend"
            )
        predictions = _begun(_predictions(model, path))
        if output is None:
            _write_csv(sys.stdout, predictions)
        else:
            count = _write_file(output, predictions)
            typer.echo(f"{output}: {count:,} predictions", err=True)


def _predictions(model: OpenedModel, path: str) -> Iterator[npt.NDArray[Any]]:
    for batch in model.source.read(path):
        yield model.predict(batch)


def _begun(predictions: Iterator[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
    """The same, the first of them made: a bad file is refused before a line is written."""
    first = list(islice(predictions, 1))
    return chain(first, predictions)


def _write_csv(file: Any, predictions: Iterator[npt.NDArray[Any]]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["prediction"])
    count = 0
    for part in predictions:
        # The fewest digits that give the same float32.
        writer.writerows([[str(each)] for each in part.astype(np.float32)])
        count += len(part)
    return count


def _write_file(output: Path, predictions: Iterator[npt.NDArray[Any]]) -> int:
    """Whole, or not at all."""
    beginning = output.with_name(f".{output.name}.part")
    try:
        if output.suffix == ".csv":
            with beginning.open("w") as file:
                count = _write_csv(file, predictions)
        else:
            count = _write_parquet(beginning, predictions)
        beginning.replace(output)
    except OSError as error:
        raise DataError(
            f"{output}: cannot be written: {error.strerror or error}", path=str(output)
        ) from error
    finally:
        beginning.unlink(missing_ok=True)
    return count


def _write_parquet(path: Path, predictions: Iterator[npt.NDArray[Any]]) -> int:
    import pyarrow
    from pyarrow import parquet

    schema, count = pyarrow.schema([("prediction", pyarrow.float32())]), 0
    with parquet.ParquetWriter(path, schema) as writer:
        for part in predictions:
            column = pyarrow.array(part.astype(np.float32))
            writer.write_table(pyarrow.Table.from_arrays([column], schema=schema))
            count += len(part)
    return count
