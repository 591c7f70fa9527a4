"""Original strings of ids, if `data.dictionary` stored them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparring import Snapshot
from sparring_train.config.run import RunConfig

__all__ = ["names_of_ids"]


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
