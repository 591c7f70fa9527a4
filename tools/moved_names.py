"""Public names that moved between packages: the table on the page of versions, and a rewriter.

    python tools/moved_names.py               # writes the table in docs/reference/versions.md
    python tools/moved_names.py SOURCE ...    # rewrites the imports in the Python files of a plugin

The rewriter changes ``from sparring import ...`` and the like. It prints what it cannot change: removed
names, and names that are read as attributes of a module. Format the files afterwards.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/reference/versions.md"
BEGIN, END = "<!-- moved names: begin -->\n", "<!-- moved names: end -->\n"

MOVES = {
    ("sparring", "sparring.adapter"): (
        "AUTO ApartRendezvous BUILTIN_METHODS BloomFilter Coordinator EnvironmentRendezvous "
        "Layouts MemoryStorage ResourceManager SingleRendezvous TableEntry Task Trace "
        "automatic_plan begin_load closest_name configure_pool dedup end_load "
        "erase_from_snapshots found_table hyper_from initial_rows locate num_threads "
        "open_place own_chunks reading resolve_method resolved_backends restore "
        "state_without_keys suggestion workload_of"
    ),
    ("sparring", "sparring_tiered"): (
        "CachedStorage ChangePublisher NotesBase TieredStorage open_change_log"
    ),
    ("sparring", "sparring.contracts"): (
        "Capabilities Closable EnvironmentOptions Evicted LocalPath NativeMethod "
        "NativeStorage Streams TierCounters capsule_of checked_options conversion_command "
        "initializer_spec interrupted_load is_path membership_from partition read_note "
        "rounding_seed write_note"
    ),
    ("sparring", "sparring_cli"): (
        "Document DocumentModel MetricCounter MetricFamily MetricRegistry MetricSample "
        "MetricsExporter context_of embedding_parts inspect_gpus inspect_machine "
        "installed_versions make_console print_json print_warning read_document resolve_path "
        "verify_snapshot with_paths write_metrics_file"
    ),
    ("sparring.adapter", "sparring.contracts"): "EnvironmentOptions membership_from",
    ("sparring.adapter", "sparring"): (
        "ExchangeOptions PluginManager SaveOptions Snapshot SnapshotWriter State "
        "StepContainer StorageChoice TableDescription join_job make_plugin_manager "
        "open_snapshot"
    ),
    ("sparring.adapter", "sparring_packed"): "Program ProgramLibrary new_bundle program_binding",
    ("sparring.contracts", "sparring.adapter"): (
        "DTYPES SecretFound expiry_from may_show_secret secrets_in"
    ),
    ("sparring.contracts", "sparring"): (
        "Bloom Constant Expiry Frequency Normal Probability TruncatedNormal Uniform Xavier Zeros"
    ),
    ("sparring.adapter", "sparring.errors"): "ProgramError",
}
"""Old and new module: the names that moved between them."""

REMOVED = {
    ("sparring", "Codec KEY_BYTES chunks_of gradient_bytes header_bytes reply_bytes"): (
        "`sparring.adapter.MessageSizes` computes the sizes of messages"
    ),
    ("sparring", "ExchangeCounters Link MessageKind MOST_FINDS"): "internal names of the exchange",
    ("sparring", "MOST_BYTES bytes_from_text"): "`ByteCount` of `sparring.contracts` reads sizes",
    ("sparring", "MOST_CHUNKS_IN_FLIGHT MOST_CHUNK_ROWS WireDtype"): (
        "`sparring.ExchangeOptions` checks the values and accepts the names of dtypes"
    ),
    ("sparring", "Step"): "`StepContainer` creates it",
    ("sparring", "estimate_bytes"): "call `estimate_bytes` of the descriptor",
    ("sparring.adapter", "ProgramBinding"): "`sparring_packed.program_binding` returns it",
    ("sparring.adapter", "give_back_threads"): "an internal name",
    ("sparring.adapter", "c_reader"): "`sparring_packed.library_path` and `include_path`",
    ("sparring.adapter", "NcclCollective open_cuda open_nccl why_nccl_is_unavailable"): (
        "sparring-nccl registers the collective `nccl`"
    ),
    ("sparring.contracts", "CReader"): "`sparring_packed.library_path` and `include_path`",
    ("sparring.contracts", "NoOptions"): "the default of `Descriptor.options`",
    ("sparring.contracts", "new_header"): "`Collective.all_to_all` sends headers",
}
"""Old module and names that have no successor of the same name: what to do instead."""

_NEW = {(old, name): new for (old, new), names in MOVES.items() for name in names.split()}
_GONE = {(old, name): advice for (old, names), advice in REMOVED.items() for name in names.split()}


def table() -> str:
    """Returns the section of the page: which names moved where, and what replaces the removed ones."""
    lines = ["| old module | new module | names |", "|---|---|---|"]
    for (old, new), names in MOVES.items():
        lines.append(f"| `{old}` | `{new}` | {_listed(names)} |")
    lines += ["", "| old module | removed names | instead |", "|---|---|---|"]
    for (old, names), advice in REMOVED.items():
        lines.append(f"| `{old}` | {_listed(names)} | {advice} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Returns the page with the current table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def rewrite(source: str) -> str:
    """Returns a Python source whose imports name the new modules."""
    lines = source.splitlines(keepends=True)
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(imports, key=lambda each: each.lineno, reverse=True):
        old = str(node.module)
        by_module: dict[str, list[str]] = {}
        for alias in node.names:
            new = _NEW.get((old, alias.name), old)
            written = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
            by_module.setdefault(new, []).append(written)
        if set(by_module) != {old} and not node.level:
            assert node.end_lineno is not None
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [
                _import_of(indent, module, names) for module, names in by_module.items()
            ]
    return "".join(lines)


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the advice for each use of an old name that `rewrite` does not change."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level:
            uses = [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Attribute):
            uses = [(ast.unparse(node.value), node.attr)]
        else:
            continue
        for old, name in uses:
            if (old, name) in _GONE:
                yield node.lineno, f"{old}.{name} was removed: {_GONE[old, name]}"
            elif (old, name) in _NEW and isinstance(node, ast.Attribute):
                yield node.lineno, f"{old}.{name} is now {_NEW[old, name]}.{name}"


def main(arguments: list[str]) -> int:
    if not arguments:
        PAGE.write_text(page())
        return 0
    num_problems = 0
    for path in sorted(each for source in arguments for each in Path(source).rglob("*.py")):
        source = path.read_text()
        rewritten = rewrite(source)
        if rewritten != source:
            path.write_text(rewritten)
            print(f"{path}: rewritten")
        for line, advice in sorted(problems(rewritten)):
            num_problems += 1
            print(f"{path}:{line}: {advice}")
    return 1 if num_problems else 0


def _import_of(indent: str, module: str, names: list[str]) -> str:
    line = f"{indent}from {module} import {', '.join(names)}\n"
    if len(line) <= 100:
        return line
    body = "".join(f"{indent}    {name},\n" for name in names)
    return f"{indent}from {module} import (\n{body}{indent})\n"


def _listed(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
