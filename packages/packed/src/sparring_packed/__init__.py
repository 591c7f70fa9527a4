"""Serving snapshots: immutable, memory-mapped files for lookups without a training process.

    sparring_packed.write("runs/films/step-000000000100", "served/step-000000000100")
    with sparring_packed.open("served") as tables:
        rows = tables.lookup("item", [7, -1])

``docs/format/packed.md`` describes the format, ``sparring_packed.h`` the equivalent C interface.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_packed.faiss_index import FaissIndex
    from sparring_packed.gate import Gate, read_gate, write_gate
    from sparring_packed.library import include_path, library_path, widen_rows
    from sparring_packed.manifest import (
        ModelFile,
        ServingFile,
        ServingManifest,
        ServingTable,
        read_manifest,
    )
    from sparring_packed.merging import merge
    from sparring_packed.model_files import decode_parameters, encode_parameters
    from sparring_packed.options import PackedOptions
    from sparring_packed.programs import (
        Program,
        ProgramLibrary,
        new_bundle,
        program_binding,
    )
    from sparring_packed.storage import PackedStorage
    from sparring_packed.tables import (
        PackedTable,
        PackedTables,
        PackedVersion,
        PullResult,
        open,  # noqa: A004 - used as sparring_packed.open
    )
    from sparring_packed.top_k_search import TopK, TopKSearch, top_k
    from sparring_packed.version_files import ComputedTable, WriteOptions, WriteResult
    from sparring_packed.warm_up import WarmUp, WarmUpResult
    from sparring_packed.writer import write

_HOMES = {
    "sparring_packed.faiss_index": "FaissIndex",
    "sparring_packed.gate": "Gate read_gate write_gate",
    "sparring_packed.library": "include_path library_path set_simd_level simd_level widen_rows",
    "sparring_packed.manifest": "ModelFile ServingFile ServingManifest ServingTable read_manifest",
    "sparring_packed.merging": "merge",
    "sparring_packed.model_files": "decode_parameters encode_parameters",
    "sparring_packed.options": "PackedOptions",
    "sparring_packed.programs": "Program ProgramLibrary new_bundle program_binding",
    "sparring_packed.storage": "PackedStorage",
    "sparring_packed.tables": "PackedTable PackedTables PackedVersion PullResult open",
    "sparring_packed.top_k_search": "TopK TopKSearch top_k",
    "sparring_packed.version_files": "ComputedTable WriteOptions WriteResult",
    "sparring_packed.warm_up": "WarmUp WarmUpResult",
    "sparring_packed.writer": "write",
}

__all__ = [
    "ComputedTable",
    "FaissIndex",
    "Gate",
    "ModelFile",
    "PackedOptions",
    "PackedStorage",
    "PackedTable",
    "PackedTables",
    "PackedVersion",
    "Program",
    "ProgramLibrary",
    "PullResult",
    "ServingFile",
    "ServingManifest",
    "ServingTable",
    "TopK",
    "TopKSearch",
    "WarmUp",
    "WarmUpResult",
    "WriteOptions",
    "WriteResult",
    "decode_parameters",
    "encode_parameters",
    "include_path",
    "library_path",
    "merge",
    "new_bundle",
    "open",
    "program_binding",
    "read_gate",
    "read_manifest",
    "top_k",
    "widen_rows",
    "write",
    "write_gate",
]

__version__ = "0.1.0"

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    # Imported on demand, so that importing the plugin module does not load the native library.
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
