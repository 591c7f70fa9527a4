"""`KTRegroupAsDict`: a module that regroups pooled embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_tensor import KeyedTensor

__all__ = ["KTRegroupAsDict"]


class KTRegroupAsDict(nn.Module):
    """Concatenates features by group.

    Args:
        groups: features of each group.
        keys: names of the groups.

    Raises:
        InvalidArgumentError: the numbers of groups and names differ.
    """

    def __init__(self, groups: Sequence[Sequence[str]], keys: Sequence[str]) -> None:
        super().__init__()
        if len(groups) != len(keys):
            raise InvalidArgumentError(
                f"KTRegroupAsDict: found {len(keys)} names for {len(groups)} groups; give one name per "
                "group"
            )
        self._groups, self._keys = [list(each) for each in groups], list(keys)

    def forward(self, keyed_tensors: Sequence[KeyedTensor]) -> dict[str, Tensor]:
        """Returns name of a group → ``(b, sum of dims)``.

        Raises:
            InvalidArgumentError: see `KeyedTensor.regroup`.
        """
        return KeyedTensor.regroup_as_dict(keyed_tensors, self._groups, self._keys)
