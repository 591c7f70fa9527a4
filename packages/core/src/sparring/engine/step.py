"""`Step`: one training step without a framework adapter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import as_array, check_keys
from sparring.engine.lookup.lookup import Lookup
from sparring.engine.resource_manager import ResourceManager
from sparring.errors import InvalidArgumentError

__all__ = ["Step"]


class Step:
    """One training step; see `StepContainer.step`."""

    def __init__(self, lookup_all: Callable[..., list[Lookup]], resources: ResourceManager) -> None:
        self._lookup_all, self._resources = lookup_all, resources

    def lookup(self, table: str, ids: npt.ArrayLike) -> Lookup:
        """Looks up the embeddings of ids: ``rows[inverse]`` of the result are the embeddings.

        Args:
            table: name of a declared table.
            ids: ``(n,)`` integers, in any order; they may repeat.
        """
        own_error, keys = None, np.empty(0, np.int64)
        try:
            keys = check_keys(ids, table, unique=False)
        except Exception as error:
            own_error = error  # raised on all ranks, because the others have started this lookup
        return self._lookup_all([(table, keys)], own_error=own_error)[0]

    def accumulate(self, lookup: Lookup, gradient: npt.ArrayLike) -> None:
        """Adds the gradient of a lookup's rows.

        Args:
            lookup: result of `lookup`.
            gradient: ``(u, dim)`` real numbers, converted to the table's computing dtype.

        Raises:
            InvalidArgumentError: wrong shape or dtype, or the lookup was not registered.
        """
        if lookup.shadow_id is None:
            raise InvalidArgumentError(
                "accumulate: this lookup was not registered, so it accepts no gradient; use "
                "the result of Step.lookup"
            )
        given = as_array(gradient, "gradient")
        if given.size and given.dtype.kind not in "fiu" and given.dtype.name != "bfloat16":
            raise InvalidArgumentError(
                f"gradient of shadow {lookup.shadow_id}: must be real numbers, found dtype "
                f"{given.dtype}; convert it to {lookup.rows.dtype}"
            )
        self._resources.accumulate(lookup.shadow_id, np.ascontiguousarray(given, lookup.rows.dtype))
