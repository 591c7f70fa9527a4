"""`KTRegroupAsDict`: regrouping of pooled embeddings as a module."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_tensor import KeyedTensor

__all__ = ["KTRegroupAsDict"]


class KTRegroupAsDict(nn.Module):
    """Returns features side by side, group by group.

    Args:
        groups: features of each group.
        keys: names of the groups.

    Raises:
        InvalidArgumentError: if there is not one name for each group.
    """

    def __init__(self, groups: Sequence[Sequence[str]], keys: Sequence[str]) -> None:
        super().__init__()
        if len(groups) != len(keys):
            raise InvalidArgumentError(
                f"KTRegroupAsDict needs a name for each group, found {len(keys)} names for "
                f"{len(groups)} groups"
            )
        self._groups, self._keys = [list(each) for each in groups], list(keys)

    def forward(self, keyed_tensors: Sequence[KeyedTensor]) -> dict[str, Tensor]:
        """Name of a group → ``(b, sum of dims)``.

        Raises:
            InvalidArgumentError: as `KeyedTensor.regroup`.
        """
        return KeyedTensor.regroup_as_dict(keyed_tensors, self._groups, self._keys)
