"""Tables of Apache Iceberg: the catalog and the manifests contain the files of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import pyarrow
from pyarrow import parquet
from pyiceberg import expressions
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.transforms import IdentityTransform

from sparring.errors import DataError
from sparring_train.data.lake.conditions import Condition, parse_conditions
from sparring_train.data.lake.table import Version, fingerprint_of
from sparring_train.data.table.files import TableFile, TablePart
from sparring_train.data.table.parquet_rows import ParquetRows

__all__ = ["IcebergLake"]

_OPERATORS: dict[str, Any] = {
    "=": expressions.EqualTo,
    "!=": expressions.NotEqualTo,
    "<": expressions.LessThan,
    "<=": expressions.LessThanOrEqual,
    ">": expressions.GreaterThan,
    ">=": expressions.GreaterThanOrEqual,
}


class IcebergLake:
    """See `LakeTable`. The configuration of pyiceberg defines the catalog and credentials.

    Args:
        location: ``<catalog>/<namespace>.<table>``.
        version: id of a snapshot, or the name of a tag or a branch.
        conditions: conditions that select whole files by their partitions.

    Raises:
        DataError: the table has no snapshot, or the version does not exist.
    """

    def __init__(self, location: str, version: Version, conditions: Sequence[str]) -> None:
        catalog, _, name = location.partition("/")
        self._url = f"iceberg://{location}"
        if not catalog or "." not in name:
            raise DataError(
                f"data.path: found {self._url}, expected iceberg://<catalog>/<namespace>.<table>"
            )
        self._conditions = parse_conditions(conditions)
        self._table = load_catalog(catalog).load_table(name)
        if version is None:
            found = self._table.current_snapshot()
        elif isinstance(version, int):
            found = self._table.snapshot_by_id(version)
        else:
            found = self._table.snapshot_by_name(version)
        if found is None:
            known = ", ".join(str(each.snapshot_id) for each in self._table.snapshots()[-5:])
            raise DataError(
                f"{self._url}: found no snapshot {'' if version is None else version}, the last ones "
                f"are {known or 'none'}; change data.version",
                path=self._url,
            )
        self.version = int(found.snapshot_id)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            " ".join([task.file.file_path, *sorted(each.file_path for each in task.delete_files)])
            for task in self._tasks
        )

    def rows(self, columns: Sequence[str]) -> ParquetRows:
        """Returns the rows of the files whose partitions satisfy the conditions."""
        schema = self._schema
        arrow = schema_to_pyarrow(schema, include_field_ids=False)
        ids = {field.name: field.field_id for field in schema.fields}
        files, root = [], f"{self._table.location()}/"
        for task in self._tasks:
            path = task.file.file_path
            if task.file.file_format != FileFormat.PARQUET:
                raise DataError(
                    f"reading {path}: found {task.file.file_format}, expected PARQUET; rewrite the "
                    "table's files",
                    path=path,
                )
            part = TablePart(arrow, self._constants(task.file, arrow), ids, self._deleted(task))
            system, place = self._system(path)
            files.append(TableFile(path, system, place, part, path.removeprefix(root)))
        return ParquetRows(files, columns)

    @property
    def _schema(self) -> Any:
        snapshot = self._table.snapshot_by_id(self.version)
        assert snapshot is not None
        schemas = self._table.schemas()
        known = snapshot.schema_id
        return self._table.schema() if known is None else schemas[known]

    @cached_property
    def _tasks(self) -> list[Any]:
        """The chosen files with their delete files, in order of path."""
        expression: Any = expressions.AlwaysTrue()
        for each in self._conditions:
            expression = expressions.And(expression, _expression(each))
        scan = self._table.scan(row_filter=expression, snapshot_id=self.version)
        tasks = sorted(scan.plan_files(), key=lambda task: task.file.file_path)
        partial = next((each for each in tasks if each.residual != expressions.AlwaysTrue()), None)
        if partial is not None:
            raise DataError(
                f"data.filter: selects a part of the rows of {partial.file.file_path}, expected "
                f"conditions on columns by which {self._url} is partitioned; remove the other ones",
                path=self._url,
            )
        if not tasks:
            raise DataError(
                f"{self._url}, snapshot {self.version}: found no file, expected at least one; change "
                "data.filter or data.version",
                path=self._url,
            )
        return tasks

    def _constants(self, file: Any, schema: Any) -> Mapping[str, Any]:
        """Returns the values of the columns by which a file is partitioned without a transform."""
        spec = self._table.specs()[file.spec_id]
        found = {}
        for at, field in enumerate(spec.fields):
            if isinstance(field.transform, IdentityTransform):
                name = self._schema.find_column_name(field.source_id)
                if name in schema.names:
                    kind = schema.field(name).type
                    found[name] = _scalar(file.partition[at], kind)
        return found

    def _deleted(self, task: Any) -> Any:
        """Returns the indices of the deleted rows of a file, sorted; None if there are none."""
        if not task.delete_files:
            return None
        found = []
        for each in task.delete_files:
            if each.file_format != FileFormat.PARQUET:
                raise DataError(
                    f"reading {task.file.file_path}: found the delete file {each.file_path} of the "
                    f"format {each.file_format}, expected PARQUET; compact the table, which removes "
                    "its delete files",
                    path=each.file_path,
                )
            with self._table.io.new_input(each.file_path).open() as opened:
                deletes = parquet.read_table(opened, columns=["file_path", "pos"])
            is_here = pyarrow.compute.equal(deletes["file_path"], task.file.file_path)
            found.append(deletes["pos"].filter(is_here).to_numpy())
        return np.unique(np.concatenate(found).astype(np.int64))

    def _system(self, path: str) -> tuple[Any, str]:
        if path.startswith(("file:", "/")):
            return fsspec.core.url_to_fs(path)  # type: ignore[no-any-return]
        return _Files(self._table.io), path


@dataclass(frozen=True, slots=True)
class _Files:
    """Opens files of an object store with the credentials of the catalog; see `TableFile.open`."""

    io: Any

    def open(self, path: str, mode: str, compression: str | None) -> Any:
        return self.io.new_input(path).open()


def _expression(condition: Condition) -> Any:
    return _OPERATORS[condition.sign](condition.column, condition.text)


def _scalar(value: Any, kind: Any) -> Any:
    """Returns a value of a partition, in which times and dates are numbers since 1970."""
    if isinstance(value, int) and pyarrow.types.is_date32(kind):
        return pyarrow.scalar(value, pyarrow.int32()).cast(kind)
    if isinstance(value, int) and pyarrow.types.is_timestamp(kind):
        return pyarrow.scalar(value, pyarrow.int64()).cast(kind)
    return pyarrow.scalar(value, kind)
