"""Plugin of this package for sparring. Importing it imports no framework and reads no file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparring.contracts import hookimpl
from sparring_jsonl.sections import FactorizationMachineModel, JsonLinesData
from sparring_train import DataDescriptor, ModelDescriptor

if TYPE_CHECKING:
    from sparring_train import ColumnBatch, Dataset, ModelRequest, OpenRequest


def _open(section: JsonLinesData, request: OpenRequest) -> Dataset:
    from sparring_jsonl.dataset import JsonLinesDataset

    return JsonLinesDataset(section, request)


def _read(section: JsonLinesData, path: str) -> Iterator[ColumnBatch]:
    from sparring_jsonl.dataset import read_examples

    return read_examples(section, path)


def _build(request: ModelRequest) -> Any:
    from sparring_jsonl.torch_model import FactorizationMachine

    return FactorizationMachine(request)


# optionalhook: these hooks are sparring-train's, and the plugin also loads where only core is.
@hookimpl(optionalhook=True)
def sparring_register_data() -> list[DataDescriptor]:
    return [
        DataDescriptor(
            name="json_lines",
            api_version=(1, 0),  # of the contract that this was written against, not of a package
            summary="Objects of JSON, one a line.",
            section=JsonLinesData,
            open=_open,
            read=_read,
        )
    ]


@hookimpl(optionalhook=True)
def sparring_register_models() -> list[ModelDescriptor]:
    return [
        ModelDescriptor(
            name="factorization_machine",
            api_version=(1, 0),
            summary="Factorisation machine, for clicks.",
            section=FactorizationMachineModel,
            build={"torch": _build},
        )
    ]
