"""``sparring evaluate`` and ``sparring predict``: use the model in a snapshot."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from sparring.errors import DataError, InvalidArgumentError
from sparring_cli import (
    JsonOption,
    add_command,
    get_command_context,
    make_console,
    print_json,
    print_note,
)
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.cli.train import OverridesArgument
from sparring_train.config.sections.table import TableData
from sparring_train.data.file_identities import DATA_FILES, identify_files
from sparring_train.data.lake.table import is_lake
from sparring_train.data.table.files import find_files
from sparring_train.hookspecs import OpenedModel
from sparring_train.loop.saved_model import evaluate_model
from sparring_train.recommend.all_rows import PredictionJob
from sparring_train.recommend.part_commands import PartsOption, write_parts
from sparring_train.recommend.part_files import PartFolder
from sparring_train.run.same_run import PINNED, RUN
from sparring_train.run.saved_run import open_run, read_run_config

if TYPE_CHECKING:
    import pyarrow

    from sparring import PluginManager, Snapshot
    from sparring_train.columns import Schema

__all__ = ["SnapshotArgument", "add_evaluate", "add_predict"]

SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A snapshot of a run, or a folder of snapshots, whose newest one is used.",
        show_default=False,
    ),
]


def add_evaluate(application: typer.Typer) -> None:
    add_command(
        application,
        "evaluate",
        evaluate,
        examples=[
            "sparring evaluate runs/films",
            "sparring evaluate runs/films/step-000000000200 data.path=new.csv --json",
        ],
    )


def add_predict(application: typer.Typer) -> None:
    add_command(
        application,
        "predict",
        predict,
        examples=[
            "sparring predict runs/clicks new.csv",
            "sparring predict runs/clicks new.parquet --output predictions.parquet",
            "sparring predict runs/clicks s3://bucket/new --output s3://bucket/predictions/ --parts 0/16",
        ],
    )


def evaluate(
    context: typer.Context,
    snapshot: SnapshotArgument,
    overrides: OverridesArgument = None,
    as_json: JsonOption = False,
) -> None:
    """Print the metrics of a saved model on the test examples of its run, or on all rows of another
    file."""
    found = open_newest_snapshot(snapshot)
    manager = get_command_context(context).plugin_manager
    given = overrides or []
    other = _find_other_files(found, given, manager)
    whole = () if other is None else _EVERY_ROW
    with open_run(found, [*given, *whole], manager) as (config, model):
        metrics, undefined = evaluate_model(model), model.source.explain_undefined
        count = model.source.num_evaluated
    if other is not None:
        print_note(f"{other} is not a file of the run, so all of its rows are evaluated")
    if as_json:
        told = {"snapshot": found.url, "step": found.step, "evaluated": count, "metrics": metrics}
        print_json(told if undefined is None else {**told, "undefined_metrics": undefined})
        return
    console = make_console()
    what = "queries" if config.model.loss == "ranking" else "rows"
    console.print(
        f"{found.url}, step {found.step:,}, {count:,} {what}", markup=False, soft_wrap=True
    )
    for name, value in metrics.items():
        console.print(f"test {name}  {value:.4f}", markup=False)
    if undefined is not None:
        console.print(f"undefined metrics: {undefined}", markup=False, soft_wrap=True)


_EVERY_ROW = ("data.split={files: '*'}", "data.validation=null")


def _find_other_files(
    snapshot: Snapshot, overrides: Sequence[str], manager: PluginManager
) -> str | None:
    """Returns the path of an override that names files with other content, if no override sets the split.
    Models that rank items need a split, because they rank items of training rows."""
    keys = {each.partition("=")[0].strip() for each in overrides}
    if "data.path" not in keys or any(each.startswith("data.split") for each in keys):
        return None
    config = read_run_config(snapshot, overrides, manager)
    names = snapshot.state_names(0)
    saved = snapshot.state(PINNED).values.get(DATA_FILES) if PINNED in names else None
    data = config.data
    if not isinstance(data, TableData) or config.model.loss == "ranking" or is_lake(data.path):
        return None
    if saved is None:
        is_own = snapshot.state(RUN).values["data"].get("path") == str(Path(data.path).resolve())
    else:
        is_own = {*identify_files(find_files(data.path)).values()} <= {*saved.values()}
    return None if is_own else data.path


def predict(
    context: typer.Context,
    snapshot: SnapshotArgument,
    path: Annotated[
        str,
        typer.Argument(metavar="FILE", help="Examples: a file with the columns of the run's data."),
    ],
    overrides: OverridesArgument = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="File to write: .csv or .parquet; or a folder or URL that ends in /, for Parquet parts "
            "that the same command resumes. Default: standard output.",
        ),
    ] = None,
    part_rows: Annotated[int, typer.Option(help="Number of rows per part of a folder.", min=1)] = 1
    << 20,
    parts: PartsOption = None,
) -> None:
    """Print or write the ids and the prediction of each row of a file, in order.

    Lists of ids are joined by | in CSV.
    """
    found = open_newest_snapshot(snapshot)
    if output is not None and output.endswith("/"):
        # The bits of predictions may depend on the number of threads.
        one_thread = [*(overrides or []), "threads=1"]
        with open_run(found, one_thread, get_command_context(context).plugin_manager) as opened:
            job = PredictionJob(found, *opened, path, part_rows)
            write_parts(job, PartFolder(output), "rows", parts, as_json=False)
        return
    if parts is not None:
        raise InvalidArgumentError(
            f"--parts: found --output {output}, expected a folder; end its name with /"
        )
    file = None if output is None else Path(output)
    if file is not None and (file.suffix not in (".csv", ".parquet") or "://" in str(output)):
        raise InvalidArgumentError(
            f"--output: found {output}, expected a name that ends in .csv or .parquet for a local "
            "file, or in / for a folder or URL; rename it"
        )
    with open_run(found, overrides or [], get_command_context(context).plugin_manager) as (
        config,
        model,
    ):
        if config.model.loss == "ranking":
            raise InvalidArgumentError(
                f"{found.url}: its model ranks items and predicts no numbers; run sparring recommend "
                "for the best items"
            )
        counts = _Counts({each.name: 0 for each in config.data.columns.features})
        tables = _compute_first(_predictions(model, path, config.data.columns, counts))
        if file is None:
            _write_csv(sys.stdout, tables)
        else:
            count = _write_file(file, tables)
            print_note(f"{file}: {count:,} predictions")
    if counts.bad:
        print_note(f"{counts.bad:,} of {counts.rows:,} rows are bad: their prediction is empty")
    for name, count in counts.without_row.items():
        if count:
            print_note(
                f"{name}: {count:,} of {counts.rows:,} rows contain an id without a row, which reads as "
                "its initial value"
            )


@dataclass(slots=True)
class _Counts:
    """Counts of the rows for which predictions were made."""

    without_row: dict[str, int]
    """Feature → number of rows that contain an id without a row in its table."""
    rows: int = 0
    bad: int = 0
    """Number of rows with an invalid value."""


def _predictions(
    model: OpenedModel, path: str, schema: Schema, counts: _Counts
) -> Iterator[pyarrow.Table]:
    """Yields the ids of rows as in the file, with their predictions."""
    import pyarrow

    container = model.source.container
    for batch in model.source.read(path):
        is_bad = None if batch.is_good is None else ~batch.is_good
        predicted = pyarrow.array(model.predict(batch).astype(np.float32), mask=is_bad)
        counts.rows += len(batch)
        counts.bad += predicted.null_count
        for feature in schema.features:
            if feature.table_name in container.tables:
                column = batch.ids[feature.name]
                distinct, inverse = np.unique(column.ids, return_inverse=True)
                is_unknown = ~container.storage(feature.table_name).find(distinct).found[inverse]
                rows = np.repeat(np.arange(len(column)), column.counts)[is_unknown]
                counts.without_row[feature.name] += len(np.unique(rows))
        yield pyarrow.table({**batch.given, "prediction": predicted})
    if not counts.rows:
        empty = {name: pyarrow.nulls(0) for name in counts.without_row}
        yield pyarrow.table({**empty, "prediction": pyarrow.array([], pyarrow.float32())})


def _compute_first(predictions: Iterator[pyarrow.Table]) -> Iterator[pyarrow.Table]:
    """Computes the first element, so that a bad file raises before any output is written."""
    first = list(islice(predictions, 1))
    return chain(first, predictions)


def _write_csv(file: Any, predictions: Iterator[pyarrow.Table]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    count = 0
    for number, part in enumerate(predictions):
        if not number:
            writer.writerow(part.column_names)
        *ids, predicted = (column.to_pylist() for column in part.columns)
        # Uses the fewest digits that identify the float32.
        texts = ("" if each is None else str(np.float32(each)) for each in predicted)
        writer.writerows(zip(*(map(_as_text, each) for each in ids), texts, strict=True))
        count += len(part)
    return count


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "|".join(map(_as_text, value))
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _write_file(output: Path, predictions: Iterator[pyarrow.Table]) -> int:
    """Writes to a temporary file first, so that the output is complete or does not exist."""
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
            f"writing {output} failed: {error.strerror or error}; choose another --output",
            path=str(output),
        ) from error
    finally:
        beginning.unlink(missing_ok=True)
    return count


def _write_parquet(path: Path, predictions: Iterator[pyarrow.Table]) -> int:
    from pyarrow import parquet

    count, first = 0, next(predictions)
    with parquet.ParquetWriter(path, first.schema) as writer:
        for part in chain([first], predictions):
            writer.write_table(part.cast(first.schema))
            count += len(part)
    return count
