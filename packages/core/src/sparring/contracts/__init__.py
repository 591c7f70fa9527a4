"""The contracts that authors of plugins read and may rely on.

Each name is imported from its home when it is first used; nothing here loads the native library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring._lazy import names_from

if TYPE_CHECKING:
    from sparring.contracts.checkpoint import SaveSeconds
    from sparring.contracts.descriptors import (
        API_VERSION,
        CollectiveDescriptor,
        CommandDescriptor,
        Descriptor,
        FrameworkDescriptor,
        InnerStorage,
        KernelsDescriptor,
        OptionProblem,
        PlannerDescriptor,
        RendezvousDescriptor,
        ShardingKindDescriptor,
        StorageDescriptor,
        UpdateMethodDescriptor,
    )
    from sparring.contracts.device.kernel_set import (
        KernelSet,
        NumEvicted,
        StorageChange,
        StorageKernels,
        StorageLookup,
        StorageUpdate,
        StoredRows,
        TableBags,
        TableSums,
    )
    from sparring.contracts.device.kernels import (
        ArraySource,
        Dedup,
        DeviceArray,
        Indices,
        Pooling,
        Rounding,
        Route,
    )
    from sparring.contracts.hookspecs import hookimpl, hookspec
    from sparring.contracts.options import (
        ByteCount,
        LocalPath,
        NoOptions,
        Options,
        WholeNumber,
        is_path,
    )
    from sparring.contracts.planner import FeatureWorkload, MadePlan, PlanRequest, TableWorkload
    from sparring.contracts.ranks.collective import (
        NUM_TAGS,
        Array,
        Backoff,
        BufferView,
        Collective,
        PolledWork,
        Reduction,
        Work,
        WorkContext,
        new_header,
    )
    from sparring.contracts.ranks.layout import Layout, LayoutRequest, ShardingPlan, TableSharding
    from sparring.contracts.ranks.notices import (
        NO_RANK,
        NOTICE_TAG,
        Failure,
        Inquiry,
        Notice,
        NoticeKind,
        empty_notice,
    )
    from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
    from sparring.contracts.ranks.shard_map import NUM_PARTITIONS, Shard, ShardMap
    from sparring.contracts.settings import choice_of, fields_of, kind_of
    from sparring.contracts.storage.capabilities import Capabilities
    from sparring.contracts.storage.change_log import ChangeLog
    from sparring.contracts.storage.optional import (
        Background,
        SupportsBackground,
        SupportsCapsule,
        SupportsCopy,
        SupportsFirstTier,
        SupportsNotes,
        SupportsPurge,
        SupportsPush,
        SupportsReplaceAll,
        SupportsRestore,
    )
    from sparring.contracts.storage.results import (
        Columns,
        Evicted,
        FindResult,
        Keys,
        Rows,
        ScanChunk,
        Scores,
        check_columns,
        check_keys,
    )
    from sparring.contracts.storage.storage import Storage, closed_error, read_note, write_note
    from sparring.contracts.storage.tiers import SupportsTiers, TierCounters
    from sparring.contracts.storage.updates import MethodChoice, UpdateMethod, UpdateRows
    from sparring.contracts.tables.admission import (
        ADMISSIONS,
        Admission,
        AdmissionLike,
        Bloom,
        Frequency,
        Probability,
        admission_from,
    )
    from sparring.contracts.tables.expiry import Expiry, ExpiryLike, expiry_from
    from sparring.contracts.tables.hyperparameters import HyperParameters
    from sparring.contracts.tables.initializers import (
        INITIALIZERS,
        Constant,
        Initializer,
        Normal,
        TruncatedNormal,
        Uniform,
        Xavier,
        Zeros,
        initializer_from,
    )
    from sparring.contracts.tables.table import CONVERT_HELP, DTYPES, TableConfig
    from sparring.runtime.lifecycle import Closable, ProcessGuard, call_each
    from sparring.runtime.secrets import (
        SECRET_GIVEN,
        SecretFound,
        may_show_secret,
        passwords_in,
        secrets_in,
    )

__getattr__ = names_from(
    globals(),
    {
        "sparring.contracts.tables.admission": (
            "ADMISSIONS Admission AdmissionLike Bloom Frequency Probability admission_from"
        ),
        "sparring.contracts.storage.capabilities": "Capabilities",
        "sparring.contracts.storage.change_log": "ChangeLog",
        "sparring.contracts.checkpoint": "SaveSeconds",
        "sparring.contracts.ranks.collective": (
            "Array Backoff BufferView Collective NUM_TAGS PolledWork Reduction Work WorkContext "
            "new_header"
        ),
        "sparring.contracts.descriptors": (
            "API_VERSION CollectiveDescriptor CommandDescriptor Descriptor "
            "FrameworkDescriptor InnerStorage KernelsDescriptor OptionProblem PlannerDescriptor "
            "RendezvousDescriptor ShardingKindDescriptor StorageDescriptor UpdateMethodDescriptor"
        ),
        "sparring.contracts.tables.expiry": "Expiry ExpiryLike expiry_from",
        "sparring.contracts.hookspecs": "hookimpl hookspec",
        "sparring.contracts.tables.hyperparameters": "HyperParameters",
        "sparring.contracts.tables.initializers": (
            "Constant INITIALIZERS Initializer Normal TruncatedNormal Uniform Xavier Zeros "
            "initializer_from"
        ),
        "sparring.contracts.device.kernel_set": (
            "KernelSet NumEvicted StorageChange StorageKernels StorageLookup StorageUpdate StoredRows "
            "TableBags TableSums"
        ),
        "sparring.contracts.device.kernels": (
            "ArraySource Dedup DeviceArray Indices Pooling Rounding Route"
        ),
        "sparring.contracts.ranks.layout": "Layout LayoutRequest ShardingPlan TableSharding",
        "sparring.contracts.ranks.notices": (
            "Failure Inquiry NOTICE_TAG NO_RANK Notice NoticeKind empty_notice"
        ),
        "sparring.contracts.options": "ByteCount LocalPath NoOptions Options WholeNumber is_path",
        "sparring.contracts.planner": "FeatureWorkload MadePlan PlanRequest TableWorkload",
        "sparring.contracts.ranks.rendezvous": "Membership Rendezvous",
        "sparring.contracts.storage.results": (
            "Columns Evicted FindResult Keys Rows ScanChunk Scores check_columns check_keys"
        ),
        "sparring.runtime.lifecycle": "Closable ProcessGuard call_each",
        "sparring.runtime.secrets": (
            "SECRET_GIVEN SecretFound may_show_secret passwords_in secrets_in"
        ),
        "sparring.contracts.settings": "choice_of fields_of kind_of",
        "sparring.contracts.ranks.shard_map": "NUM_PARTITIONS Shard ShardMap",
        "sparring.contracts.storage.storage": "Storage closed_error read_note write_note",
        "sparring.contracts.storage.optional": (
            "Background SupportsBackground SupportsCapsule SupportsCopy SupportsFirstTier "
            "SupportsNotes SupportsPush SupportsPurge SupportsReplaceAll SupportsRestore"
        ),
        "sparring.contracts.tables.table": "CONVERT_HELP DTYPES TableConfig",
        "sparring.contracts.storage.tiers": "SupportsTiers TierCounters",
        "sparring.contracts.storage.updates": "MethodChoice UpdateMethod UpdateRows",
    },
)

# Packed: one name a line would hide the rest of this file.
# fmt: off
__all__ = [
    "ADMISSIONS", "API_VERSION", "Admission", "AdmissionLike", "Array", "ArraySource",
    "Background", "Backoff", "Bloom", "BufferView", "ByteCount", "CONVERT_HELP", "Capabilities",
    "ChangeLog", "Closable", "Collective", "CollectiveDescriptor", "Columns", "CommandDescriptor",
    "Constant", "DTYPES", "Dedup", "Descriptor", "DeviceArray", "Evicted", "Expiry", "ExpiryLike",
    "Failure", "FeatureWorkload", "FindResult", "FrameworkDescriptor", "Frequency",
    "HyperParameters", "INITIALIZERS", "Indices", "Initializer", "InnerStorage", "Inquiry",
    "KernelSet", "KernelsDescriptor", "Keys", "Layout", "LayoutRequest", "LocalPath", "MadePlan",
    "Membership", "MethodChoice", "NOTICE_TAG", "NO_RANK", "NUM_PARTITIONS", "NUM_TAGS",
    "NoOptions", "Normal", "Notice", "NoticeKind", "NumEvicted", "OptionProblem", "Options",
    "PlanRequest", "PlannerDescriptor", "PolledWork", "Pooling", "Probability", "ProcessGuard",
    "Reduction", "Rendezvous", "RendezvousDescriptor", "Rounding", "Route", "Rows", "SECRET_GIVEN",
    "SaveSeconds", "ScanChunk", "Scores", "SecretFound", "Shard", "ShardMap",
    "ShardingKindDescriptor", "ShardingPlan", "Storage", "StorageChange", "StorageDescriptor",
    "StorageKernels", "StorageLookup", "StorageUpdate", "StoredRows", "SupportsBackground",
    "SupportsCapsule", "SupportsCopy", "SupportsFirstTier", "SupportsNotes", "SupportsPurge",
    "SupportsPush", "SupportsReplaceAll", "SupportsRestore", "SupportsTiers", "TableBags",
    "TableConfig", "TableSharding", "TableSums", "TableWorkload", "TierCounters",
    "TruncatedNormal", "Uniform", "UpdateMethod", "UpdateMethodDescriptor", "UpdateRows",
    "WholeNumber", "Work", "WorkContext", "Xavier", "Zeros", "admission_from", "call_each",
    "check_columns", "check_keys", "choice_of", "closed_error", "empty_notice", "expiry_from",
    "fields_of", "hookimpl", "hookspec", "initializer_from", "is_path", "kind_of",
    "may_show_secret", "new_header", "passwords_in", "read_note", "secrets_in", "write_note"
]
# fmt: on
