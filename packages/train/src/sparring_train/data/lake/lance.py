"""Tables in the format Lance, which stores rows in fragments and applies deletions itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import lance

from sparring.errors import DataError
from sparring_train.data.lake.table import Version, fingerprint_of, translate_lake_errors
from sparring_train.data.table.decode import RawRows
from sparring_train.data.table.row_groups import ColumnTypes, RowGroup

__all__ = ["LanceLake"]

_GROUP_ROWS = 100_000
"""Number of rows of a fragment that are shuffled and assigned to ranks together."""
_READ_AHEAD = 2
"""Number of blocks that a lane reads ahead."""


class LanceLake:
    """See `LakeTable`. Credentials come from the environment, as pylance reads them.

    Args:
        location: absolute path of the table, or its URL in an object store.
        version: a number, or the name of a tag.
        conditions: must be empty, because tables have no partitions.

    Raises:
        DataError: the version does not exist, or there are conditions.
    """

    def __init__(self, location: str, version: Version, conditions: Sequence[str]) -> None:
        self._url = f"lance://{location}"
        if "://" not in location and not location.startswith("/"):
            raise DataError(
                f"data.path: found {self._url}, expected an absolute path (lance:///data/clicks.lance) "
                "or a URL (lance://s3://bucket/clicks.lance)"
            )
        if conditions:
            raise DataError(
                f"data.filter: found {conditions[0]!r}, but tables in the format Lance, such as "
                f"{self._url}, have no partitions; remove data.filter"
            )
        self._table = lance.dataset(location, version=version)
        self.version = int(self._table.version)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            f"{[file.path for file in each.data_files()]} {each.deletion_file()}"
            for each in self._table.get_fragments()
        )

    def rows(self, columns: Sequence[str]) -> LanceRows:
        """Returns the rows of all fragments."""
        return LanceRows(self._url, self._table, columns)


class LanceRows:
    """Rows of fragments. See `TableRows`.

    Args:
        url: URL of the table.
        table: the opened table.
        columns: required columns.

    Raises:
        DataError: a column is missing, or there is no row.
    """

    def __init__(self, url: str, table: Any, columns: Sequence[str]) -> None:
        self._url, self._table = url, table
        self._fragments = table.get_fragments()
        self.groups: list[RowGroup] = []
        self.types = ColumnTypes()
        schema = table.schema
        for name in columns:
            if name not in schema.names:
                raise DataError(
                    f"{url}: column {name!r} is missing, found {', '.join(schema.names[:12])}; fix the "
                    "columns of the configuration or of the table",
                    path=url,
                    column=name,
                )
        self.types.add(url, {name: schema.field(name).type for name in columns})
        position = 0
        for number, fragment in enumerate(self._fragments):
            num_rows = fragment.count_rows()
            for group, begin in enumerate(range(0, num_rows, _GROUP_ROWS)):
                count = min(_GROUP_ROWS, num_rows - begin)
                self.groups.append(RowGroup(number, group, begin + 1, position, count, begin))
                position += count
        if not position:
            raise DataError(f"found no row in {url}; choose another table or data.version")

    def name_of(self, group: RowGroup) -> str:
        """Returns the URL of the table and the number of the fragment."""
        return f"{self._url}, {self.key_of(group)}"

    def key_of(self, group: RowGroup) -> str:
        """Returns the number of the fragment."""
        return f"fragment {self._fragments[group.file].fragment_id}"

    def read(
        self, groups: Iterable[RowGroup], columns: Sequence[str], block_rows: int
    ) -> Iterator[RawRows]:
        """Yields the rows of row groups, in order, at most `block_rows` at a time.

        Raises:
            DataError: a fragment cannot be read.
        """
        for group in groups:
            fragment, position = self._fragments[group.file], group.position
            first_row, name, key = group.first_row, self.name_of(group), self.key_of(group)
            with translate_lake_errors(self._url, self._table.version):
                for block in fragment.to_batches(
                    columns=list(columns),
                    batch_size=block_rows,
                    offset=group.first_row - 1,
                    limit=group.num_rows,
                    batch_readahead=_READ_AHEAD,
                ):
                    arrays = dict(zip(block.schema.names, block.columns, strict=True))
                    yield RawRows(
                        name,
                        first_row,
                        position,
                        block.num_rows,
                        arrays,
                        key=key,
                        index=first_row - 1,
                    )
                    first_row += block.num_rows
                    position += block.num_rows
