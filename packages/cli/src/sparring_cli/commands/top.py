"""``sparring top``: a live view of the metrics of running processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparring.errors import SparringError
from sparring_cli.metrics.job_state import (
    JobState,
    ProcessState,
    ServingState,
    describe_job,
    describe_process,
)
from sparring_cli.metrics.scrape import Credentials, Interval, Scrape, complete_url, scrape
from sparring_cli.output import make_console, print_json
from sparring_cli.registration import JsonOption, add_command
from sparring_cli.snapshots.formatting import format_bytes

__all__ = ["add_top"]


def add_top(application: typer.Typer) -> None:
    add_command(
        application,
        "top",
        top,
        examples=[
            "sparring top 127.0.0.1:9434 127.0.0.1:9435",
            "sparring top http://server:9500/metrics --every 5 --once --json",
            "sparring top server:9500 --token-file token --ca-file ca.pem",
        ],
    )


def top(
    urls: Annotated[
        list[str],
        typer.Argument(
            metavar="URL",
            help="Pages of metrics, one per rank or server. http:// and /metrics may be omitted.",
            show_default=False,
        ),
    ],
    every: Annotated[
        float, typer.Option(help="Seconds between two readings.", min=0.1, max=3600)
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one view after two readings, and exit.")
    ] = False,
    ca_file: Annotated[
        Path | None, typer.Option(help="Certificates to trust; encrypts the connection.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File whose first line is the token.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show step times, the slowest rank, hit rates, memory, lag and latency of running processes.

    Rates and quantiles are those between two readings. --json implies --once.
    """
    credentials = Credentials.read(token_file, ca_file)
    complete = [complete_url(each, is_encrypted=ca_file is not None) for each in urls]
    pages = [_Page(each, credentials) for each in dict.fromkeys(complete)]
    errors = [page.try_read() for page in pages]
    if errors[0] is not None and all(errors):
        raise errors[0]
    if once or as_json:
        time.sleep(every)
        state = describe_job([page.read_or_report() for page in pages])
        if as_json:
            print_json(state.as_dict())
        else:
            make_console().print(_render(state))
        return
    console = make_console()
    state = describe_job([page.read_or_report() for page in pages])
    view = Live(_render(state), console=console, auto_refresh=False, screen=console.is_terminal)
    # Ctrl-C is how the user leaves.
    with suppress(KeyboardInterrupt), view as live:
        while True:
            time.sleep(every)
            state = describe_job([page.read_or_report() for page in pages])
            live.update(_render(state), refresh=True)


class _Page:
    """The last readings of one page.

    A training process writes its page at intervals. The older reading is therefore the last one with
    other values than the newest one.
    """

    def __init__(self, url: str, credentials: Credentials) -> None:
        self.url = url
        self._credentials = credentials
        self._newest: Scrape | None = None
        self._older: Scrape | None = None

    def read(self) -> None:
        """Reads the page.

        Raises:
            SparringError: See `scrape`.
        """
        found = scrape(self.url, self._credentials)
        # As text, because a metric that is not a number differs from itself.
        if self._newest is None or repr(found.values) != repr(self._newest.values):
            self._older, self._newest = self._newest, found

    def try_read(self) -> SparringError | None:
        """Reads the page, and returns the error, if any."""
        try:
            self.read()
        except SparringError as error:
            return error
        return None

    def read_or_report(self) -> ProcessState:
        """Reads the page, and returns the state or the error."""
        if (error := self.try_read()) is not None:
            return ProcessState(self.url, error=str(error))
        assert self._newest is not None
        return describe_process(self.url, Interval(self._newest, self._older))


def _render(state: JobState) -> RenderableType:
    processes = state.processes
    shown: list[RenderableType] = []
    if state.reason:
        shown.append(Text(state.reason, style="bold" if state.slowest_rank else "default"))
    shown += [Text(f"{each.error}", style="bold red") for each in processes if each.error]
    training = [each for each in processes if each.steps is not None]
    if training:
        shown.append(_training_table(training, state.slowest_rank))
    served = [each for each in processes if each.serving is not None]
    if served:
        shown.append(_serving_table(served))
    learning = [each for each in processes if each.learning is not None]
    if learning:
        shown.append(_learning_table(learning))
    rates = [(each, *found) for each in processes for found in each.hit_rates.items()]
    if rates:
        table = Table(
            "process", "cache or tier", "hit rate", title="Hit rates", title_justify="left"
        )
        for process, name, share in rates:
            table.add_row(Text(_name(process)), Text(name), f"{share:.1%}")
        shown.append(table)
    lags = [(each, *found) for each in processes for found in each.lag_seconds.items()]
    if lags:
        table = Table("process", "lag", "p50", "p99", title="Stream", title_justify="left")
        for process, name, (middle, high) in lags:
            table.add_row(Text(_name(process)), name.replace("_", " "), _time(middle), _time(high))
        shown.append(table)
    if any(each.is_since_start and each.error is None for each in processes):
        shown.append(
            Text("Averages since the start, because a page has not changed yet.", style="dim")
        )
    return Group(*shown)


def _training_table(processes: Sequence[ProcessState], slowest: str | None) -> Table:
    parts = list(dict.fromkeys(part for each in processes for part in each.parts))
    table = Table(title="Training", title_justify="left")
    for name in ("process", "steps", "step", *parts, "memory"):
        # As `Text`, because names of parts come from the page and may look like markup.
        table.add_column(Text(name), justify="left" if name == "process" else "right")
    for each in processes:
        style = "bold yellow" if slowest is not None and each.rank == slowest else None
        table.add_row(
            Text(_name(each)),
            "" if each.steps is None else f"{each.steps:,.0f}",
            _time(each.step_seconds),
            *(_time(each.parts.get(part)) for part in parts),
            _memory(each),
            style=style,
        )
    return table


def _serving_table(processes: Sequence[ProcessState]) -> Table:
    table = Table(title="Serving", title_justify="left")
    names = ("process", "calls/s", "p50", "p99", "ids found", "failed", "version", "age", "memory")
    for name in names:
        table.add_column(name, justify="left" if name == "process" else "right")
    for each in processes:
        found = each.serving
        assert found is not None
        table.add_row(
            Text(_name(each)),
            "" if found.calls_per_second is None else f"{found.calls_per_second:,.1f}",
            _time(found.p50_seconds),
            _time(found.p99_seconds),
            "" if found.found_share is None else f"{found.found_share:.1%}",
            f"{found.failed:,.0f}",
            _version(found),
            _time(found.staleness_seconds),
            _memory(each),
            style="bold yellow" if found.is_behind else None,
        )
    return table


def _learning_table(processes: Sequence[ProcessState]) -> Table:
    table = Table(title="Tables that learn", title_justify="left")
    names = (
        "process",
        "role",
        "pushes",
        "pushes/s",
        "waiting",
        "followers in sync",
        "lag",
        "pushes lost",
    )
    for name in names:
        table.add_column(name, justify="left" if name in ("process", "role") else "right")
    for each in processes:
        found = each.learning
        assert found is not None
        table.add_row(
            Text(_name(each)),
            found.role or "",
            _count(found.pushed_steps),
            "" if found.pushes_per_second is None else f"{found.pushes_per_second:,.1f}",
            _count(found.pushes_waiting),
            _count(found.followers_in_sync) + (", all behind" if found.lacks_follower else ""),
            _count(found.follower_lag_records),
            "yes" if found.are_pushes_lost else "no",
            style="bold red"
            if found.are_pushes_lost
            else "yellow"
            if found.lacks_follower
            else None,
        )
    return table


def _version(found: ServingState) -> str:
    step = "" if found.version_step is None else f"step {found.version_step:,.0f}"
    return f"{step}, behind" if found.is_behind else step


def _count(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _name(process: ProcessState) -> str:
    place = process.url.partition("://")[2].removesuffix("/metrics")
    return place if process.rank is None else f"rank {process.rank} ({place})"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{1e6 * seconds:,.0f} µs"
    return f"{1e3 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _memory(process: ProcessState) -> str:
    if process.memory_bytes is None:
        return ""
    used = format_bytes(int(process.memory_bytes))
    limit = process.memory_limit_bytes
    return used if not limit else f"{used}, {process.memory_bytes / limit:.0%}"
