"""Fuzzes CSV and Parquet files: each must be read, or rejected with `DataError`.

    python -m fuzz.tables csv …          python -m fuzz.tables parquet …

The first byte selects the options; the remaining bytes are the file, which is opened as examples, read
completely, and sampled like `sparring init` does.
"""

from __future__ import annotations

import gzip
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fuzz import harness

_INSTRUMENTED = ("sparring_train.data.table", "sparring_train.columns")
_COLUMNS = {"categorical": ["user", "item", "tags"], "lists": ["tags"], "numeric": ["price"]}
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bad_rows": "skip"},
    {"types": {"user": "hexadecimal", "item": "unsigned"}, "weight": "price", "numeric": []},
    {"label_values": {"yes": 1, "no": 0}, "bad_rows": "skip"},
    {"categorical": ["item", "user"], "lists": [], "missing_ids": {"user": -1}},
    {"categorical": ["item"], "lists": [], "required": ["item"], "log1p": ["price"]},
    {"split": {"leave_one_out": "item"}, "time": "price", "numeric": []},
)
_CSV_OPTIONS: tuple[dict[str, Any], ...] = (
    {"delimiter": ";", "decimal": ",", "missing_values": ["NA"]},
    {"column_names": ["user", "item", "tags", "clicked", "price"]},
)


@contextmanager
def open_target(ending: str) -> Iterator[harness.Target]:
    """Returns a target that writes each input to a file with this ending and reads it."""
    from sparring.errors import DataError
    from sparring_train.config.sections.table import TableData
    from sparring_train.data.dataset import OpenRequest
    from sparring_train.data.table.dataset import open_table, read_table
    from sparring_train.data.table.files import find_files
    from sparring_train.data.table.sample import sample_parquet
    from sparring_train.data.table.text.sample import sample_csv

    options = (*_OPTIONS, *_CSV_OPTIONS) if ending == "csv" else _OPTIONS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"log.{ending}")
        fixed = {"kind": "table", "path": str(path), "label": "clicked", "batch_size": 16}
        if ending == "csv":
            fixed["separator"] = "|"
        sections = [TableData.model_validate({**fixed, **_COLUMNS, **each}) for each in options]

        def target(data: bytes) -> None:
            choice, content = data[0] if data else 0, data[1:]
            path.write_bytes(content)
            section = sections[choice % len(sections)]
            with suppress(DataError):
                dataset = open_table(section, OpenRequest(3, "binary", 0, 1))
                for batches in (dataset.batches(0), dataset.test_batches()):
                    with suppress(DataError):
                        for batch in batches:
                            if batch.ids and any(
                                len(each) != len(batch) for each in batch.ids.values()
                            ):
                                raise AssertionError("columns of a batch have different lengths")
            with suppress(DataError):
                for _ in read_table(section, str(path)):
                    pass
            if choice % 2 == 0:
                with suppress(DataError):
                    files = find_files(str(path))
                    if ending == "csv":
                        sample_csv(str(path), files, section)
                    else:
                        sample_parquet(files)

        yield target


def seeds(ending: str) -> Iterator[bytes]:
    """Yields small files for each choice of options."""
    return _csv_seeds() if ending == "csv" else _parquet_seeds()


def _csv_seeds() -> Iterator[bytes]:
    header = "user,item,tags,clicked,price\n"
    lines = 'ab,7,x|y,1,0.5\n,18446744073709551615,,0,\n"a,\n""b",-3,z,1,1e3\n'
    texts = [
        header + lines,
        lines * 3,
        header + lines.replace("1", "yes").replace("0", "no"),
        (header + lines).replace(",", ";").replace(".", ",") + "NA;NA;NA;1;NA\n",
        header + "ab,7\n" + lines + 'open,"quote,x,1,2\n',
        "\ufeff" + header + "ff,0x1,t,0,1\n",
    ]
    for choice in range(9):
        for text in texts:
            yield bytes([choice]) + text.encode()
    yield b"\0" + gzip.compress(texts[0].encode())


def _parquet_seeds() -> Iterator[bytes]:
    import pyarrow
    from pyarrow import parquet

    columns = {
        "user": pyarrow.array(["ab", None, "0f"]),
        "item": pyarrow.array([7, -3, None], pyarrow.int64()),
        "tags": pyarrow.array([["x", "y"], [], None], pyarrow.list_(pyarrow.string())),
        "clicked": pyarrow.array([1, 0, 1], pyarrow.int8()),
        "price": pyarrow.array([0.5, None, 1e3]),
    }
    others = [
        {},
        {"clicked": pyarrow.array(["yes", "no", "yes"])},
        {"item": pyarrow.array([7, 2**64 - 1, 0], pyarrow.uint64())},
        {"user": columns["user"].dictionary_encode(), "item": pyarrow.array([1.0, None, 2.0])},
        {"tags": pyarrow.array([[1], [2, 3], []], pyarrow.list_(pyarrow.int64()))},
    ]
    for number, each in enumerate(others):
        table = pyarrow.table({**columns, **each})
        for settings in ({}, {"compression": "none", "use_dictionary": False}):
            file = io.BytesIO()
            parquet.write_table(table, file, row_group_size=2, **settings)
            for choice in {0, number, number + 2}:
                yield bytes([choice]) + file.getvalue()


def main(arguments: list[str]) -> int:
    """Runs the target of the ending that the first argument names."""
    opened: Any = partial(open_target, arguments[0])
    target: AbstractContextManager[harness.Target] = opened
    return harness.run(arguments[1:], _INSTRUMENTED, target)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
