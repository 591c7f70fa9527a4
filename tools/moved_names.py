"""Public names that moved or were renamed, and a rewriter of imports.

    python tools/moved_names.py SOURCE ...    # rewrites the imports in the Python files of a plugin

The rewriter changes statements such as ``from sparring import ...``, and imports renamed names under
their old names. It prints the names that it cannot change: removed names, and names that are read as
attributes of a module. Format the files afterwards.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

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
    (
        "sparring",
        "ExchangeCounters Link MessageKind MOST_FINDS",
    ): "internal names without a replacement",
    ("sparring", "MOST_BYTES bytes_from_text"): "`ByteCount` of `sparring.contracts` reads sizes",
    ("sparring", "MOST_CHUNKS_IN_FLIGHT MOST_CHUNK_ROWS WireDtype"): (
        "`sparring.ExchangeOptions` checks the values and accepts the names of dtypes"
    ),
    ("sparring", "Step"): "`StepContainer` creates steps",
    ("sparring", "estimate_bytes"): "the method `estimate_bytes` of the storage's descriptor",
    ("sparring.adapter", "ProgramBinding"): "`sparring_packed.program_binding` returns it",
    ("sparring.adapter", "give_back_threads"): "an internal name without a replacement",
    ("sparring.adapter", "c_reader"): "`sparring_packed.library_path` and `include_path`",
    ("sparring.adapter", "NcclCollective open_cuda open_nccl why_nccl_is_unavailable"): (
        "sparring-nccl registers the collective `nccl`"
    ),
    ("sparring.contracts", "CReader"): "`sparring_packed.library_path` and `include_path`",
    ("sparring.contracts", "NoOptions"): "omit `options` of the descriptor: this is its default",
    ("sparring.contracts", "new_header"): "`Collective.all_to_all` sends headers",
}
"""Old module and names that have no successor of the same name → what to use instead."""

RENAMED = {
    "sparring": (
        "Saved:SaveResult Loaded:LoadResult merged_chunks:scan_rows "
        "unreadable_snapshots:list_unreadable_snapshots"
    ),
    "sparring.adapter": (
        "hyper_from:parse_hyper expiry_from:parse_expiry choice_of:choice_type "
        "ApartRendezvous:IndependentRendezvous secrets_in:find_secrets "
        "SecretFound:FoundSecret closest_name:find_closest_name suggestion:format_suggestion "
        "set_rate:set_learning_rate workload_of:describe_workload plan_of_job:resolve_plan "
        "made_plan:request_plan resolved_backends:resolve_backends reporting:failure_reports "
        "given_storages:collect_open_storages joined_container:join_container "
        "storage_device:find_storage_device own_methods:describe_added_methods "
        "why_no_weight:explain_missing_weight service_storage:choose_service_storage "
        "rounds_alike:is_equal_up_to_rounding give_states:set_states "
        "give_method_states:set_method_states declared:make_declaration "
        "own_chunks:scan_own_rows open_place:open_root"
    ),
    "sparring.contracts": (
        "admission_from:parse_admission initializer_from:parse_initializer "
        "fields_of:get_fields checked_options:validate_options "
        "membership_from:read_membership MadePlan:PlanResult Evicted:EvictedRows "
        "NumEvicted:EvictionResult passwords_in:find_passwords SECRET_GIVEN:SECRET_IN_CONFIG "
        "capsule_of:get_capsule conversion_command:format_conversion_command"
    ),
    "sparring_cli": (
        "place_in:make_locator context_of:get_command_context explain:explain_error "
        "shape_of:find_shape path_of:find_path embedding_parts:read_embedding_parts "
        "installed_versions:list_installed_versions Place:Location Places:Locations "
        "dotted:format_path"
    ),
    "sparring_packed": ("Pulled:PullResult Written:WriteResult WarmedUp:WarmUpResult"),
    "sparring_serve": (
        "AnsweredVersion:ReplyVersion Answer:LookupReply Pushed:PushResult "
        "Place:ShardPosition Quality:MetricValue"
    ),
    "sparring_train": (
        "trainer_of:find_trainer evaluated:evaluate_model strings_of:find_strings "
        "opened_run:open_run"
    ),
    "sparring_jax": ("Places:Positions pooled:pool"),
}
"""The present module of names that were renamed: the old and the new name of each."""

_RENAMED = {
    (module, old): new
    for module, pairs in RENAMED.items()
    for old, new in (pair.split(":") for pair in pairs.split())
}
_NEW = {(old, name): new for (old, new), names in MOVES.items() for name in names.split()}
_GONE = {(old, name): advice for (old, names), advice in REMOVED.items() for name in names.split()}


def new_name(module: str, name: str) -> str:
    """Returns the name that something has in its present module."""
    return _RENAMED.get((module, name), name)


def rewrite(source: str) -> str:
    """Returns a Python source whose imports name the new modules."""
    lines = source.splitlines(keepends=True)
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(imports, key=lambda each: each.lineno, reverse=True):
        old = str(node.module)
        by_module: dict[str, list[str]] = {}
        for alias in node.names:
            new = _NEW.get((old, alias.name), old)
            name = new_name(new, alias.name)
            used = alias.asname or alias.name
            written = name if used == name else f"{name} as {used}"
            by_module.setdefault(new, []).append(written)
        is_renamed = any((old, alias.name) in _RENAMED for alias in node.names)
        if (is_renamed or set(by_module) != {old}) and not node.level:
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
            elif isinstance(node, ast.Attribute):
                new = _NEW.get((old, name), old)
                if (new, new_name(new, name)) != (old, name):
                    yield node.lineno, f"{old}.{name} is now {new}.{new_name(new, name)}"


def main(arguments: list[str]) -> int:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
