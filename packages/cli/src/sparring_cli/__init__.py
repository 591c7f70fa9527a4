"""The command `sparring`, and parts for packages that add commands.

YAML documents, console output, metrics, checks and conversions of snapshots. Names are imported on
first access, so that a program that only reads a document does not import typer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_cli.application import main, make_application
    from sparring_cli.context import CommandContext, get_command_context
    from sparring_cli.documents.document import Document, DocumentModel, read_document
    from sparring_cli.documents.explanations import explain_error
    from sparring_cli.documents.locations import Locations
    from sparring_cli.documents.overrides import apply_override
    from sparring_cli.documents.paths import resolve_path, with_paths
    from sparring_cli.documents.problems import (
        ConfigPath,
        Location,
        Problem,
        describe_value,
        format_path,
        raise_problems,
    )
    from sparring_cli.documents.reader import (
        CONFIG_LIMITS,
        DATA_LIMITS,
        Limits,
        ParsedText,
        make_locator,
        parse_yaml,
        read_text,
    )
    from sparring_cli.documents.schema import UNKNOWN_KEY, Shape, find_path, find_shape, known_keys
    from sparring_cli.documents.writer import as_yaml
    from sparring_cli.exit_codes import ExitCode, exit_code_of
    from sparring_cli.gpus import Gpu, Gpus, inspect_gpus
    from sparring_cli.hookspecs import (
        InspectorDescriptor,
        JobCheck,
        JobCheckerDescriptor,
        JobRequest,
    )
    from sparring_cli.machine import Machine, inspect_machine, list_installed_versions
    from sparring_cli.metrics.exporter import (
        MetricsAccess,
        MetricsExporter,
        write_metrics_file,
    )
    from sparring_cli.metrics.process import process_metrics
    from sparring_cli.metrics.registry import (
        MetricCounter,
        MetricFamily,
        MetricGauge,
        MetricHistogram,
        MetricRegistry,
        MetricSample,
    )
    from sparring_cli.output import (
        VERBOSE_HANDLER,
        is_quiet,
        make_console,
        print_document,
        print_error,
        print_json,
        print_note,
        print_warning,
        progress_bar,
    )
    from sparring_cli.registration import GROUPS, JsonOption, VerifyOption, add_command
    from sparring_cli.snapshots.difference import MovedRow, TableDifference, compare_tables
    from sparring_cli.snapshots.export import export_tables, read_embedding_parts
    from sparring_cli.snapshots.table_import import import_table
    from sparring_cli.snapshots.verify import SnapshotProblem, VerifyReport, verify_snapshot
    from sparring_cli.tracing import (
        call_span,
        server_span,
        trace_headers,
        tracer,
        use_tracer_provider,
    )

_HOMES = {
    "documents.explanations": "explain_error",
    "documents.overrides": "apply_override",
    "documents.locations": "Locations",
    "documents.problems": "ConfigPath Location Problem describe_value format_path raise_problems",
    "documents.reader": "CONFIG_LIMITS DATA_LIMITS Limits ParsedText parse_yaml make_locator read_text",
    "documents.schema": "Shape UNKNOWN_KEY known_keys find_path find_shape",
    "documents.writer": "as_yaml",
    "application": "main make_application",
    "context": "CommandContext get_command_context",
    "documents.document": "Document DocumentModel read_document",
    "documents.paths": "resolve_path with_paths",
    "exit_codes": "ExitCode exit_code_of",
    "hookspecs": "InspectorDescriptor JobCheck JobCheckerDescriptor JobRequest",
    "gpus": "Gpu Gpus inspect_gpus",
    "machine": "Machine inspect_machine list_installed_versions",
    "metrics.exporter": "MetricsAccess MetricsExporter write_metrics_file",
    "metrics.process": "process_metrics",
    "metrics.registry": (
        "MetricCounter MetricFamily MetricGauge MetricHistogram MetricRegistry MetricSample"
    ),
    "output": (
        "VERBOSE_HANDLER is_quiet make_console print_document print_error print_json print_note "
        "print_warning progress_bar"
    ),
    "registration": "GROUPS JsonOption VerifyOption add_command",
    "snapshots.difference": "MovedRow TableDifference compare_tables",
    "snapshots.export": "read_embedding_parts export_tables",
    "snapshots.table_import": "import_table",
    "snapshots.verify": "SnapshotProblem VerifyReport verify_snapshot",
    "tracing": "call_span server_span trace_headers tracer use_tracer_provider",
}

__all__ = [
    "CONFIG_LIMITS",
    "CommandContext",
    "GROUPS",
    "ConfigPath",
    "DATA_LIMITS",
    "Document",
    "DocumentModel",
    "ExitCode",
    "Gpu",
    "Gpus",
    "InspectorDescriptor",
    "JobCheck",
    "JobCheckerDescriptor",
    "JobRequest",
    "JsonOption",
    "Limits",
    "Machine",
    "MetricCounter",
    "MetricFamily",
    "MetricGauge",
    "MetricHistogram",
    "MetricRegistry",
    "MetricSample",
    "MetricsAccess",
    "MetricsExporter",
    "MovedRow",
    "ParsedText",
    "Location",
    "Locations",
    "Problem",
    "Shape",
    "SnapshotProblem",
    "TableDifference",
    "UNKNOWN_KEY",
    "VERBOSE_HANDLER",
    "VerifyOption",
    "VerifyReport",
    "add_command",
    "apply_override",
    "as_yaml",
    "compare_tables",
    "get_command_context",
    "describe_value",
    "format_path",
    "read_embedding_parts",
    "exit_code_of",
    "explain_error",
    "export_tables",
    "import_table",
    "inspect_gpus",
    "inspect_machine",
    "list_installed_versions",
    "is_quiet",
    "known_keys",
    "main",
    "make_application",
    "make_console",
    "parse_yaml",
    "find_path",
    "make_locator",
    "print_document",
    "print_error",
    "print_json",
    "print_note",
    "print_warning",
    "process_metrics",
    "progress_bar",
    "raise_problems",
    "read_document",
    "read_text",
    "resolve_path",
    "find_shape",
    "server_span",
    "call_span",
    "trace_headers",
    "tracer",
    "use_tracer_provider",
    "verify_snapshot",
    "with_paths",
    "write_metrics_file",
]

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
