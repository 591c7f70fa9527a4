"""Original strings of ids, if `data.dictionary` stored them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import Snapshot
from sparring_train.config.run import RunConfig

__all__ = ["name_values", "names_of_ids"]


def names_of_ids(
    snapshot: Snapshot, config: RunConfig, table: str, ids: npt.NDArray[np.int64]
) -> list[int | str]:
    """Returns the string of each id of a table, or the id itself if no string is known.

    Raises:
        DataError: the strings cannot be read.
    """
    # Imported here, because it imports pyarrow.
    from sparring_train.data.table.strings import find_strings

    types = getattr(config.data, "types", {})
    kinds = {
        types.get(each.name) for each in config.data.columns.features if each.table_name == table
    }
    # An unsigned number has the same 64 bits as its key.
    modulus = 2**64 if kinds == {"unsigned"} else None
    names: list[int | str] = [int(each) if modulus is None else int(each) % modulus for each in ids]
    for feature in config.data.columns.features:
        if feature.table_name == table:
            found = find_strings(snapshot.url, feature.name, ids)
            names = [
                name if each is None else each for name, each in zip(names, found, strict=True)
            ]
    return names


def name_values(
    snapshot: Snapshot, config: RunConfig, table: str, ids: npt.NDArray[np.int64]
) -> Any:
    """Returns the result of `names_of_ids` as an Arrow array: of strings if any id has a string,
    otherwise of the integers in the data."""
    import pyarrow

    names = names_of_ids(snapshot, config, table, ids)
    if any(isinstance(each, str) for each in names):
        return pyarrow.array(list(map(str, names)), pyarrow.string())
    is_unsigned = any(each > 2**63 - 1 for each in names if isinstance(each, int))
    return pyarrow.array(names, pyarrow.uint64() if is_unsigned else pyarrow.int64())
