"""The sparring plugin of this package. Importing it imports no framework and reads no file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparring.contracts import hookimpl
from sparring_jsonl.sections import FactorizationMachineModel, JsonLinesData
from sparring_train import DataDescriptor, ModelDescriptor, StreamDescriptor

if TYPE_CHECKING:
    from sparring_train import ColumnBatch, Dataset, ModelRequest, OpenRequest, StreamSource


def _open(section: JsonLinesData, request: OpenRequest) -> Dataset:
    from sparring_jsonl.dataset import JsonLinesDataset

    return JsonLinesDataset(section, request)


def _read(section: JsonLinesData, path: str) -> Iterator[ColumnBatch]:
    from sparring_jsonl.dataset import read_examples

    return read_examples(section, path)


def _open_stream(url: str, options: object) -> StreamSource:  # noqa: ARG001 - it has no options
    from sparring_jsonl.stream import LinesSource

    return LinesSource(url)


def _build(request: ModelRequest) -> Any:
    from sparring_jsonl.torch_model import FactorizationMachine

    return FactorizationMachine(request)


# optionalhook: sparring-train defines these hooks, and the plugin must load without sparring-train.
@hookimpl(optionalhook=True)
def sparring_register_data() -> list[DataDescriptor]:
    return [
        DataDescriptor(
            name="json_lines",
            api_version=(1, 0),  # of the contract that this was written against, not of a package
            summary="JSON objects, one per line.",
            section=JsonLinesData,
            open=_open,
            read=_read,
        )
    ]


@hookimpl(optionalhook=True)
def sparring_register_streams() -> list[StreamDescriptor]:
    return [
        StreamDescriptor(
            name="jsonl",  # the scheme of `data.url`
            api_version=(1, 0),
            summary="A file to which JSON lines are added.",
            open=_open_stream,
        )
    ]


@hookimpl(optionalhook=True)
def sparring_register_models() -> list[ModelDescriptor]:
    return [
        ModelDescriptor(
            name="factorization_machine",
            api_version=(1, 0),
            summary="Factorization machine for clicks.",
            section=FactorizationMachineModel,
            build={"torch": _build},
        )
    ]
