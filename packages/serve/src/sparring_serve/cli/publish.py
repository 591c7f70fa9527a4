"""``sparring publish``: converts snapshots of a run to serving snapshots, once or continuously."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_cli import (
    MetricRegistry,
    MetricsExporter,
    add_command,
    get_command_context,
    make_console,
    print_json,
    print_note,
    print_warning,
)
from sparring_serve.config import ClientConfig, TlsFiles
from sparring_serve.publishing.evaluation import EvaluationCheck, MetricLossError
from sparring_serve.publishing.gate_file import read_gate
from sparring_serve.publishing.gate_file import unpin as unpin_version
from sparring_serve.publishing.model_files import find_model_reader
from sparring_serve.publishing.notify import Notifier
from sparring_serve.publishing.publisher import (
    GateClosedError,
    PublisherOptions,
    PublishResult,
    publish_newest,
)
from sparring_serve.publishing.publisher import pin as pin_version
from sparring_serve.publishing.quality_limits import QualityLimits, parse_minimums

__all__ = ["add_publish"]

_NOTIFY_SECONDS = 5.0
_WITH_PIN = {
    "run", "output", "pin", "unpin", "as_json", "notify", "ca_file", "token_file", "insecure"
}  # fmt: skip
"""Parameters that may be given with `--pin` or `--unpin`."""


def add_publish(application: typer.Typer) -> None:
    add_command(
        application,
        "publish",
        publish,
        examples=[
            "sparring publish runs/films --output served/films --quantize int8",
            "sparring publish runs/films -o served/films --watch --keep 5",
            "sparring publish runs/films -o served/films --watch --notify 127.0.0.1:7433",
            "sparring publish runs/films -o served/films --min auc=0.68 --not-worse-than-served 0.002",
            "sparring publish --pin step-000000002500 -o served/films",
        ],
    )


def publish(  # noqa: PLR0913, PLR0917 - one for each option
    context: typer.Context,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder of serving snapshots; created if it does not exist.",
        ),
    ],
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A snapshot, or the folder of a run's snapshots; none with --pin and --unpin.",
            show_default=False,
        ),
    ] = None,
    quantize: Annotated[
        list[str] | None,
        typer.Option(
            help="TABLE=DTYPE, or DTYPE for all other tables: fp32, fp16, bf16, int8 or int4."
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Continue to publish newer snapshots, until SIGTERM.")
    ] = False,
    poll_seconds: Annotated[
        float,
        typer.Option(help="With --watch: seconds between checks for a newer snapshot.", min=0.01),
    ] = 1.0,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Server, host:port, that is told to read each new version at once; repeatable.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="With --notify: certificates to trust; encrypts the connections."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="With --notify: file whose first line is the token of an admin."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="With --notify: allow plain text to other machines."),
    ] = False,
    full_every: Annotated[
        int,
        typer.Option(
            help="Number of serving snapshots of which at least one is full; the others are deltas."
        ),
    ] = 4,
    keep: Annotated[int, typer.Option(help="Number of serving snapshots to keep, at least 2.")] = 3,
    evaluate: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG",
            help="Configuration of the run; its model is evaluated before and after quantization.",
        ),
    ] = None,
    max_metric_loss: Annotated[
        float | None,
        typer.Option(
            help="With --evaluate: maximum loss, in units of the metric; above it, nothing is published."
        ),
    ] = None,
    minimums: Annotated[
        list[str] | None,
        typer.Option(
            "--min",
            metavar="METRIC=X",
            help="Minimum of a metric of the test samples, such as auc=0.68; below it, nothing is "
            "published.",
        ),
    ] = None,
    not_worse_than_served: Annotated[
        float | None,
        typer.Option(
            help="How much worse than the served version the first metric may be, in units of the "
            "metric; otherwise, nothing is published."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="With --watch: number of the local port with metrics for Prometheus; 0: a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    item_vectors: Annotated[
        bool,
        typer.Option(
            help="For a model whose vectors of items are not rows: compute and publish these vectors."
        ),
    ] = True,
    pin: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Make all servers of the folder serve this one of its serving snapshots.",
        ),
    ] = None,
    unpin: Annotated[
        bool,
        typer.Option(
            "--unpin", help="Remove the pin and open the gate; servers serve the newest version."
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON document; with --watch, one line of JSON per serving snapshot.",
        ),
    ] = False,
) -> None:
    """Publish the newest snapshot of a run for `sparring serve`, or select the served version."""
    if (run is not None) + (pin is not None) + unpin != 1:
        raise InvalidArgumentError(
            f"publish: found {run or 'no run'}, --pin {pin or 'no name'} and "
            f"{'--unpin' if unpin else 'no --unpin'}; specify exactly one of the three"
        )
    if run is None:
        _reject_other_options(context)
        notifier = _notifier(notify or [], ca_file, token_file, insecure=insecure)
        _select(output, pin, notifier, as_json=as_json)
        return
    if metrics_port is not None and not watch:
        raise InvalidArgumentError(
            f"publish: --metrics-port {metrics_port} requires --watch; add it, or leave the port out"
        )
    options = PublisherOptions(_quantize(quantize or []), full_every, keep)
    limits = QualityLimits(parse_minimums(minimums or []), not_worse_than_served, max_metric_loss)
    quality = _quality(context, evaluate, limits)
    manager = get_command_context(context).plugin_manager
    read_model = find_model_reader(manager, item_vectors=item_vectors)
    notifier = _notifier(notify or [], ca_file, token_file, insecure=insecure)

    def publish_once() -> PublishResult | None:
        published = publish_newest(run, output, options, quality, read_model)
        if published is not None and notifier is not None:
            for address, reason in notifier.notify().items():
                print_warning(
                    f"{address} does not serve {published.written.url} yet: {reason}; it checks for "
                    "newer versions by itself"
                )
        return published

    if not watch:
        published = publish_once()
        if published is None:
            print_note(f"{output} already contains the newest snapshot")
            if as_json:
                print_json({"url": None})
        else:
            _print(published, as_json=as_json)
        return
    registry = MetricRegistry()
    with ExitStack() as closing:
        if metrics_port is not None:
            exporter = MetricsExporter(registry, "127.0.0.1", metrics_port, "--metrics-port")
            closing.callback(exporter.close)
            print_note(f"metrics: http://127.0.0.1:{exporter.port}/metrics")
        _watch(publish_once, poll_seconds, registry, as_json=as_json)


def _notifier(
    addresses: list[str], ca_file: Path | None, token_file: Path | None, *, insecure: bool
) -> Notifier | None:
    if not addresses:
        if ca_file or token_file or insecure:
            raise InvalidArgumentError(
                "publish: found --ca-file, --token-file or --insecure, but no --notify; add --notify "
                "ADDRESS, or leave them out"
            )
        return None
    tls = None if ca_file is None else TlsFiles(ca_file=ca_file)
    config = ClientConfig(tls=tls, token_file=token_file, insecure=insecure)
    return Notifier(addresses, config, _NOTIFY_SECONDS)


def _reject_other_options(context: typer.Context) -> None:
    others = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in _WITH_PIN
        and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if others:
        raise InvalidArgumentError(
            f"publish: found {', '.join(others)} with --pin or --unpin, which publish nothing; leave "
            "them out"
        )


def _select(output: str, pin: str | None, notifier: Notifier | None, *, as_json: bool) -> None:
    before = read_gate(output)
    gate = unpin_version(output) if pin is None else pin_version(output, pin)
    failed = {} if notifier is None else notifier.notify()
    for address, reason in failed.items():
        print_warning(f"{address} does not serve it yet: {reason}; it checks by itself")
    state = "closed" if gate.is_closed else "open"
    if as_json:
        print_json({"state": state, "pin": gate.pin or None})
        return
    served = f"{gate.pin}, until --unpin" if gate.pin else "the newest version"
    typer.echo(f"{output}: {'pinned' if gate.pin else 'no pin'}; servers use {served}")
    if gate.is_closed:
        reason = gate.reason or "no reason"
        typer.echo(f"the gate is closed ({reason}): nothing is published until --unpin opens it")
    elif before.is_closed:
        typer.echo("the gate was closed, and is open now: newer versions are published")


def _watch(
    publish_once: Callable[[], PublishResult | None],
    poll_seconds: float,
    registry: MetricRegistry,
    *,
    as_json: bool,
) -> None:
    counter = registry.counter(
        "sparring_publish_results_total",
        "Versions that were published, refused because of a metric, withheld by the gate, or failed",
        ("result",),
    )
    for result in ("published", "refused", "withheld", "failed"):
        counter.add(0, result=result)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    last = ""
    while True:
        try:
            published = publish_once()
        except SnapshotError as error:
            # There is no intact snapshot yet, the gate is closed, or the model is worse.
            if str(error) != last:
                print_warning(str(error))
                counter.add(result=_result_of(error))
            last = str(error)
        else:
            last = ""
            if published is not None:
                counter.add(result="published")
                _print(published, as_json=as_json)
        if stop.wait(poll_seconds):
            return


def _result_of(error: SnapshotError) -> str:
    if isinstance(error, MetricLossError):
        return "refused"
    return "withheld" if isinstance(error, GateClosedError) else "failed"


def _quality(
    context: typer.Context, config: str | None, limits: QualityLimits
) -> EvaluationCheck | None:
    if config is not None or limits.minimums or limits.max_drop is not None:
        return EvaluationCheck(config, limits, get_command_context(context).plugin_manager)
    if limits.max_loss is not None:
        raise InvalidArgumentError(
            f"--max-metric-loss {limits.max_loss} requires --evaluate CONFIG, the configuration of the "
            "run; add it"
        )
    return None


def _quantize(given: list[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for each in given:
        table, equals, dtype = each.rpartition("=")
        name = table if equals else "*"
        if not name or not dtype or name in chosen:
            raise InvalidArgumentError(
                f"--quantize {each}: must be TABLE=DTYPE, such as item=int8, or a data type for all "
                "other tables, each at most once"
            )
        chosen[name] = dtype
    return chosen


def _print(published: PublishResult, *, as_json: bool) -> None:
    written, quality = published.written, published.quality
    if as_json:
        print_json(
            {
                "url": written.url,
                "version": written.hash,
                "step": written.step,
                "is_delta": published.is_delta,
                "removed": published.removed,
                **({"quality": asdict(quality)} if quality is not None else {}),
                "tables": {
                    name: {
                        "rows": rows,
                        "erased": written.num_erased.get(name, 0),
                        "bytes": written.size_bytes.get(name, 0),
                        "row_bytes": written.row_bytes[name],
                        "relative_error": written.relative_error.get(name, 0.0),
                    }
                    for name, rows in written.num_rows.items()
                },
            }
        )
        return
    kind = "delta" if published.is_delta else "full"
    console = make_console()
    console.print(
        f"{written.url}: {kind}, step {written.step:,}, version {written.hash}", soft_wrap=True
    )
    for name, rows in written.num_rows.items():
        error = written.relative_error.get(name, 0.0)
        console.print(
            f"  {name}: {rows:,} rows, {written.num_erased.get(name, 0):,} erased, "
            f"{written.size_bytes.get(name, 0) / 2**20:,.2f} MiB, {written.row_bytes[name]:,} bytes "
            "per row" + (f", relative error {error:.2%}" if error else ""),
            soft_wrap=True,
        )
    if quality is not None:
        console.print(
            f"  {quality.metric}: {quality.before:.6f} before, {quality.after:.6f} after, a loss of "
            f"{quality.loss:.6f}; "
            + ("" if quality.served is None else f"{quality.served:.6f} of the served version; ")
            + f"{quality.bytes_after / max(quality.bytes_before, 1):.2f} of the bytes",
            soft_wrap=True,
        )
