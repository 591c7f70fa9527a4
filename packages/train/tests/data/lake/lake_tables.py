"""Tables of each format of a lakehouse, with the same rows, and changes to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

__all__ = ["FORMATS", "Lake", "make_lake"]


class Lake(Protocol):
    """A table that a test changes. Each method creates a version."""

    url: str
    version: int

    def add(self, rows: Any, partition_by: str | None = None) -> None:
        """Adds the rows of an Arrow table, and creates the table first if it does not exist."""

    def delete(self, condition: str) -> None:
        """Deletes the rows that satisfy a condition in SQL."""


class _Delta:
    def __init__(self, folder: Path) -> None:
        self.deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
        self._path = folder / "a table"
        self.url = f"delta://{self._path}"

    @property
    def version(self) -> int:
        return int(self.table.version())

    @property
    def table(self) -> Any:
        return self.deltalake.DeltaTable(self._path)

    def add(self, rows: Any, partition_by: str | None = None) -> None:
        self.deltalake.write_deltalake(
            self._path, rows, mode="append", partition_by=partition_by, schema_mode="merge"
        )

    def delete(self, condition: str) -> None:
        self.table.delete(condition)


class _Iceberg:
    def __init__(self, folder: Path) -> None:
        catalogs = pytest.importorskip("pyiceberg.catalog", reason="pyiceberg is not installed")
        pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
        from pyiceberg.utils.config import Config

        # pyiceberg reads its configuration only once, when it is imported.
        (folder / ".pyiceberg.yaml").write_text(
            f"catalog:\n  lake:\n    uri: sqlite:///{folder}/catalog.db\n    warehouse: file://{folder}\n"
        )
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv("PYICEBERG_HOME", str(folder))
        self._patch.setattr(catalogs, "_ENV_CONFIG", Config())
        self._catalog = catalogs.load_catalog("lake")
        self._catalog.create_namespace("shop")
        self.url = "iceberg://lake/shop.clicks"

    @property
    def version(self) -> int:
        return int(self.table.current_snapshot().snapshot_id)

    @property
    def table(self) -> Any:
        return self._catalog.load_table("shop.clicks")

    def add(self, rows: Any, partition_by: str | None = None) -> None:
        if not self._catalog.table_exists("shop.clicks"):
            self._catalog.create_table("shop.clicks", rows.schema)
            if partition_by is not None:
                with self.table.update_spec() as spec:
                    spec.add_identity(partition_by)
        if set(rows.column_names) - set(self.table.schema().column_names):
            with self.table.update_schema() as schema:
                schema.union_by_name(rows.schema)
        self.table.append(rows)

    def delete(self, condition: str) -> None:
        self.table.delete(condition)

    def close(self) -> None:
        self._patch.undo()


class _Lance:
    def __init__(self, folder: Path) -> None:
        self._lance = pytest.importorskip("lance", reason="pylance is not installed")
        self._path = folder / "clicks.lance"
        self.url = f"lance://{self._path}"

    @property
    def version(self) -> int:
        return int(self.table.version)

    @property
    def table(self) -> Any:
        return self._lance.dataset(self._path)

    def add(self, rows: Any, partition_by: str | None = None) -> None:
        mode = "append" if self._path.exists() else "create"
        self._lance.write_dataset(rows, self._path, mode=mode, max_rows_per_group=100)

    def delete(self, condition: str) -> None:
        self.table.delete(condition)


FORMATS: dict[str, Callable[[Path], Any]] = {"delta": _Delta, "iceberg": _Iceberg, "lance": _Lance}


def make_lake(kind: str, folder: Path) -> Any:
    """Creates an empty table of a format in a folder; skips the test if its library is missing."""
    return FORMATS[kind](folder)
