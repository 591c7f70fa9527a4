"""``sparring neighbors``: the keys whose embeddings are nearest to the embedding of one key."""

from __future__ import annotations

from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.table import Table

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_cli import JsonOption, add_command, get_command_context, make_console, print_json
from sparring_train.cli.evaluate import SnapshotArgument
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.recommend.all_rows import NeighborJob
from sparring_train.recommend.item_index import IndexOption, chooses_faiss
from sparring_train.recommend.names_of_ids import names_of_ids
from sparring_train.recommend.part_commands import PartsOption, write_parts
from sparring_train.recommend.part_files import PartFolder
from sparring_train.run.same_run import RUN
from sparring_train.run.saved_run import read_run_config
from sparring_train.run.snapshot_rows import embeddings, find_embedding, find_key

__all__ = ["Best", "add_neighbors", "print_best"]

Best = Annotated[int, typer.Option("-k", help="Number of results.", min=1, max=65_536)]


def add_neighbors(application: typer.Typer) -> None:
    add_command(
        application,
        "neighbors",
        neighbors,
        examples=[
            "sparring neighbors runs/films item 7",
            "sparring neighbors runs/films item shoe -k 5 --metric dot --json",
            "sparring neighbors runs/films item --all --output neighbors -k 50",
        ],
        accepts_negative_numbers=True,
    )


def neighbors(  # noqa: PLR0913, PLR0917 - typer makes the options of these
    context: typer.Context,
    snapshot: SnapshotArgument,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    key: Annotated[
        str | None,
        typer.Argument(help="A key of the table: a number, or a string as in the data."),
    ] = None,
    k: Best = 10,
    metric: Annotated[
        str, typer.Option(help="cosine, dot or l2 (the squared distance times -1).")
    ] = "cosine",
    index: IndexOption = "auto",
    all_keys: Annotated[
        bool, typer.Option("--all", help="Write the neighbors of all keys to --output.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder or URL for Parquet parts. The same command resumes at the first missing part.",
        ),
    ] = None,
    part_keys: Annotated[
        int, typer.Option(help="Number of keys per part of --output.", min=1)
    ] = 16_384,
    parts: PartsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the keys of a table whose embeddings are nearest to the embedding of one key.

    With --all, the neighbors of all keys are written to --output in parts with a manifest.
    """
    if (key is None, output is not None) != (all_keys, all_keys):
        raise InvalidArgumentError(
            "neighbors: expected either KEY, or --all with --output; fix the options"
        )
    if all_keys and index == "faiss":
        raise InvalidArgumentError(
            "--index faiss is an option for one key, and --all compares all keys; remove one of them"
        )
    if parts is not None and not all_keys:
        raise InvalidArgumentError("--parts is an option for all keys; add --all and --output")
    try:
        from sparring_packed import FaissIndex, top_k
    except ImportError:
        raise UnsupportedError(
            "neighbors needs sparring-packed; run: pip install 'sparring-train[ranking]'"
        ) from None
    found = open_newest_snapshot(snapshot)
    measure = cast(Any, metric)  # The index validates the metric.
    if key is None or output is not None:
        job = NeighborJob(found, table, k, measure, part_keys)
        write_parts(job, PartFolder(str(output)), "keys", parts, as_json=as_json)
        return
    asked = find_key(found, table, key)
    query = find_embedding(found, table, asked)
    assert query is not None
    uses_faiss, itself = chooses_faiss(index), (np.array([asked]), np.array([0, 1]))
    rows = embeddings(found, table)
    if uses_faiss:
        best = FaissIndex(rows, metric=measure).top_k(query[None], k, exclude=itself)
    else:
        best = top_k(rows, query[None], k, metric=measure, exclude=itself)
    count = int(best.counts[0])
    keys, scores = best.keys[0][:count], best.scores[0][:count].tolist()
    manager = get_command_context(context).plugin_manager
    names: list[int | str] = keys.tolist()
    if RUN in found.state_names(0):
        names = names_of_ids(found, read_run_config(found, (), manager), table, keys)
    if as_json:
        listed = [{"key": name, "score": score} for name, score in zip(names, scores, strict=True)]
        used = "faiss" if uses_faiss else "exact"
        told = {"snapshot": found.url, "table": table, "of": key, "index": used}
        print_json({**told, "neighbors": listed})
    else:
        print_best(table, names, metric, scores)


def print_best(what: str, names: list[int | str], measure: str, scores: list[float]) -> None:
    """Prints a table of results, best first."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column(what)
    shown.add_column(measure, justify="right")
    for name, score in zip(names, scores, strict=True):
        shown.add_row(str(name), f"{score:.4f}")
    make_console().print(shown, markup=False)
