"""`EmbeddingBag`: replaces `torch.nn.EmbeddingBag` and needs no number of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import StorageLike, check_offsets
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring.errors import InvalidArgumentError
from sparring_torch.device.groups import DeviceGroup
from sparring_torch.device.memory import memory_errors
from sparring_torch.jagged.ids import flat_ids, to_device_ids, to_integer_ids, to_tensor
from sparring_torch.jagged.jaggedness import lengths_to_offsets, offsets_to_lengths
from sparring_torch.lookup.batch_lookup import Bags
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.single_table import SingleTable, explain_torch_arguments
from sparring_torch.modules.table_configs import EmbeddingConfig, choose_storage, declare_table
from sparring_torch.modules.table_module import untraced
from sparring_torch.state.table_names import find_free_table_name

__all__ = ["EmbeddingBag"]


class EmbeddingBag(SingleTable):
    """Pools bags of ids into one embedding each: ``(b, n)``, or ``(n,)`` with offsets, → ``(b, dim)``.

    Ids may be any int64; they are not declared in advance. See `EmbeddingBagCollection` for training
    and evaluation.

    Args:
        embedding_dim: number of elements of an embedding.
        mode: ``mean``, the default of torch, or ``sum``.
        padding_idx: an id that is excluded from its bag and from the count of the mean.
        include_last_offset: whether offsets end with the number of ids.
        name: name of the table; see `Embedding`.
        dtype: dtype of stored rows: float32, float64, float16, bfloat16 or int8. The output is float32
            for 16-bit rows.
        initializer: initial value of embeddings; None means uniform in ±0.05.
        num_embeddings: maximum number of rows in the storage; None sets no limit.
        admission: decides which new ids get a row, see `EmbeddingConfig`; None admits all ids.
        seed: determines, together with the name and the id, the initial value of an embedding.
        placement: which ranks store the rows, see `EmbeddingConfig`.
        expire: TTL of rows that are not trained, see `EmbeddingConfig`.
        storage: storage of the rows.
        device: device of the rows. On a GPU, ids on that GPU are looked up, pooled and trained
            without a copy to the host; offsets are clamped to their range instead of checked. It
            requires `storage` ``hkv``; options of a storage specify the device themselves.
        container: container of the table; None leaves the choice to the `Optimizer`.
        shared: whether other modules may use the same rows: a second module that declares the name of
            the table raises an error unless one of both has ``shared=True``.

    Raises:
        InvalidArgumentError: a number is out of range, or a mode, dtype or initializer is unknown.

    Examples:
        >>> import torch
        >>> from sparring_torch import EmbeddingBag
        >>> items = EmbeddingBag(4, mode="sum", name="items")
        >>> items(torch.tensor([1, 2, 3]), torch.tensor([0, 2])).shape
        torch.Size([2, 4])
    """

    @explain_torch_arguments
    def __init__(  # noqa: PLR0913 - torch.nn.EmbeddingBag has many keyword arguments, too
        self,
        embedding_dim: int,
        *,
        mode: str = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        name: str | None = None,
        dtype: torch.dtype = torch.float32,
        initializer: Initializer | str | dict[str, Any] | None = None,
        num_embeddings: int | None = None,
        admission: AdmissionLike = None,
        seed: int = 0,
        placement: str = "sharded",
        expire: ExpiryLike = None,
        storage: StorageLike = "hkv",
        device: torch.device | str | None = None,
        container: StepContainer | None = None,
        shared: bool = False,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise InvalidArgumentError(
                f"EmbeddingBag: found mode={mode!r}, expected 'sum' or 'mean'", mode=mode
            )
        self.embedding_dim = embedding_dim
        self.mode = mode
        self.padding_idx = padding_idx
        self.include_last_offset = include_last_offset
        self.name = find_free_table_name("embedding_bag", self) if name is None else name
        config = EmbeddingConfig(
            name=self.name,
            embedding_dim=embedding_dim,
            num_embeddings=num_embeddings,
            data_type=dtype,
            initializer=initializer,
            admission=admission,
            seed=seed,
            placement=placement,
            expire=expire,
        )
        declared = [declare_table(config, choose_storage(device, storage))]
        self.agent = TrainAgent(declared, [(self.name, mode)], container, shared=shared)
        self.register_for_ops()

    def forward(
        self,
        input: Tensor,  # noqa: A002 - the name in torch.nn
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Returns pooled embeddings ``(b, embedding_dim)``, on the device of the ids.

        Args:
            input: ids ``(b, n)`` for b bags of n ids, ``(n,)`` with `offsets`, or a nested tensor of
                b bags. Arrays and lists, also lists of different lengths, are converted.
            offsets: ``(b,)`` starts, or ``(b + 1,)`` with `include_last_offset`.
            per_sample_weights: weights with the shape of `input`, for mode ``sum``; they may require
                a gradient.

        Raises:
            InvalidArgumentError: input and offsets do not match, weights have the wrong shape or the
                mode is ``mean``, or a value is not a valid id.
        """
        if (
            not isinstance(input, Tensor)
            or input.is_nested
            or not _are_tensors(offsets, per_sample_weights)
        ):
            return self._forward_converted(input, offsets, per_sample_weights)
        if not torch.compiler.is_compiling():
            return self._eager(input, offsets, per_sample_weights)
        self._check_weights(input, per_sample_weights)
        if input.dim() == 2:
            num_bags = input.shape[0]
        else:
            num_bags = self._given_offsets(input, offsets).shape[0] - self.include_last_offset
        pooled: Tensor = torch.ops.sparring.pooled_lookup(
            input,
            offsets,
            per_sample_weights,
            *self.op_arguments(),
            [0],
            num_bags,
            self.embedding_dim,
        )
        return pooled

    def _eager(
        self,
        input: Tensor,  # noqa: A002 - as in `forward`
        offsets: Tensor | None,
        per_sample_weights: Tensor | None,
    ) -> Tensor:
        is_training = self.is_training
        path = self.agent.path_for(input, is_training=is_training)
        if path is not None:
            with memory_errors(path.device):
                with self.agent.raising_on_all_ranks(path, is_training=is_training):
                    group = self._group(input, offsets, per_sample_weights)
                return path.pool(self.agent.container, [group], is_training=is_training)[0]
        try:
            bags = self.parse_input(input, offsets, per_sample_weights)
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=is_training)
        pooled = self.agent.host.pool(bags, is_training=is_training)
        return pooled if input.device.type == "cpu" else pooled.to(input.device)

    def look_up(self, *arguments: Any) -> Tensor:
        """Returns the result of `forward` for an operator of torch, without recording a gradient.

        Args:
            *arguments: ids, offsets, weights, and two values that only the operator uses.
        """
        ids, offsets, weights, _places, _num_bags = arguments
        with torch.no_grad():
            return self._eager(ids, offsets, weights)

    def take_gradient(self, gradient: Tensor, *arguments: Any) -> Tensor | None:
        """Adds the gradient of a lookup by an operator of torch to the gradients of the next step.

        Args:
            gradient: ``(b, embedding_dim)``.
            *arguments: arguments of the operator, as in `look_up`, and whether the weights require
                a gradient.

        Returns:
            The gradient of the weights, or None if they require none.
        """
        ids, offsets, weights, _places, _num_bags, are_weights_trained = arguments
        path = self.agent.path_of_gradient(ids)
        if path is not None:
            group = self._group(ids, offsets, weights)
            path.accumulate_sources(self.agent.container, [group], [gradient])
        else:
            bags = self.parse_input(ids, offsets, weights)
            self.agent.host.take_gradient(bags, [gradient.cpu()])
        if not are_weights_trained:
            return None
        if path is not None:
            of_kept = path.weight_gradient(self.agent.container, group, gradient)
        else:
            of_kept = self.agent.host.weight_gradient(bags, [gradient.cpu()]).to(weights.device)
        of_kept = of_kept.to(weights.dtype)
        if self.padding_idx is None:
            return of_kept.view_as(weights)
        return torch.zeros_like(weights).masked_scatter_(ids != self.padding_idx, of_kept)

    @untraced
    def _forward_converted(self, given: Any, offsets: Any, weights: Any) -> Tensor:
        try:
            flat = self._flat(given, offsets, weights)
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=self.is_training)
        return self.forward(*flat)

    def _flat(
        self, given: Any, offsets: Any, weights: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Converts a nested tensor, an array or lists to tensors that `forward` accepts."""
        ids, lengths = _parts(given, f"ids of table {self.name!r}")
        if lengths is None:
            starts = None if offsets is None else to_tensor(offsets, "offsets")
            return ids, starts, None if weights is None else to_tensor(weights, "weights")
        if offsets is not None:
            raise InvalidArgumentError(
                f"table {self.name!r}: found offsets with an input of {len(lengths)} bags; omit offsets"
            )
        if weights is not None:
            weights, found = _parts(weights, f"per_sample_weights of table {self.name!r}")
            if found != lengths:
                raise InvalidArgumentError(
                    f"table {self.name!r}: per_sample_weights must have bags of the same lengths as "
                    f"the input, {lengths[:8]}, found {'none' if found is None else found[:8]}"
                )
        ends = lengths_to_offsets(torch.tensor(lengths, dtype=torch.int64))
        return ids, ends if self.include_last_offset else ends[:-1], weights

    def _group(self, values: Tensor, offsets: Tensor | None, weights: Tensor | None) -> DeviceGroup:
        """Returns the bags that `forward` looks up, on the device."""
        self._check_weights(values, weights)
        ids = to_device_ids(values, f"table {self.name!r}").reshape(-1)
        ends = self._ends_on_device(values, offsets)
        weights = None if weights is None else weights.reshape(-1)
        if self.padding_idx is not None:
            is_kept = ids != self.padding_idx
            # Waits for the device, because the number of remaining ids is needed.
            kept = is_kept.nonzero().squeeze(1)
            before = torch.zeros(len(ids) + 1, dtype=torch.int64, device=ids.device)
            torch.cumsum(is_kept, 0, out=before[1:])
            ids, ends = ids[kept], before[ends]
            weights = None if weights is None else weights[kept]
        return DeviceGroup(self.name, self.mode, [0], ids.contiguous(), ends, weights)

    def parse_input(
        self,
        input: Tensor,  # noqa: A002 - as in `forward`
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Bags:
        """Returns the bags that `forward` looks up.

        `input`, `offsets` and `per_sample_weights` are the arguments of `forward`.

        Raises:
            InvalidArgumentError: see `forward`.
        """
        if not isinstance(input, Tensor) or input.is_nested:
            return self.parse_input(*self._flat(input, offsets, per_sample_weights))
        self._check_weights(input, per_sample_weights)
        ids = to_integer_ids(input, f"table {self.name!r}").reshape(-1)
        ends = self._ends(input, offsets)
        num_bags = len(ends) - 1
        weights = per_sample_weights
        if weights is not None:
            weights = weights.reshape(-1).to("cpu")
        if self.padding_idx is not None:
            is_kept = ids != self.padding_idx
            before = np.zeros(len(ids) + 1, np.int64)
            np.cumsum(is_kept.numpy(), out=before[1:])
            ids, ends = ids[is_kept], before[ends]
            weights = None if weights is None else weights[is_kept]
        return Bags(ids.contiguous().numpy(), ends, weights, (0,), num_bags)

    def _ends(self, values: Tensor, offsets: Tensor | None) -> npt.NDArray[np.int64]:
        """Returns the offsets with the end, ``(b + 1,)``."""
        if values.dim() == 2:
            self._check_no_offsets(values, offsets)
            return np.arange(values.shape[0] + 1) * values.shape[1]
        starts = self._given_offsets(values, offsets).cpu()
        count = values.numel()
        if starts.dtype is torch.int64:
            ends = (
                starts.contiguous().numpy()
                if self.include_last_offset
                else _with_end(starts, count)
            )
            if _are_sound(ends, count):
                return ends
        return self._converted_ends(starts, count)

    def _converted_ends(self, starts: Tensor, count: int) -> npt.NDArray[np.int64]:
        """Same as `_ends` for offsets of any dtype; raises if they are invalid."""
        num_bags = len(starts) - 1 if self.include_last_offset else len(starts)
        if not self.include_last_offset:
            # The end is appended, so that a last start equal to the count is an empty bag.
            starts = torch.cat([starts, torch.full((1,), count, dtype=starts.dtype)])
        lengths = offsets_to_lengths(starts, count)
        if len(lengths) != num_bags:
            raise InvalidArgumentError(
                f"table {self.name!r}: with include_last_offset, the last offset must be the "
                f"number of ids, {count}, found {int(starts[-1]) if len(starts) else 'none'}"
            )
        return lengths_to_offsets(lengths.to(torch.int64)).numpy()

    def _ends_on_device(self, values: Tensor, offsets: Tensor | None) -> Tensor:
        """Returns valid offsets ``(b + 1,)`` for kernels, without waiting for the device."""
        count = values.numel()
        if values.dim() == 2:
            self._check_no_offsets(values, offsets)
            num_bags, length = values.shape
            return torch.arange(num_bags + 1, device=values.device) * length
        starts = self._given_offsets(values, offsets).to(values.device, torch.int64)
        if self.include_last_offset and not len(starts):
            raise InvalidArgumentError(
                f"table {self.name!r}: include_last_offset requires at least one offset, found none"
            )
        starts = starts[:-1] if self.include_last_offset else starts
        ends = torch.empty(len(starts) + 1, dtype=torch.int64, device=values.device)
        ends[:-1] = starts
        ends[:1] = 0
        ends[-1:] = count
        return torch.cummax(ends.clamp_(0, count), 0).values

    def _check_no_offsets(self, values: Tensor, offsets: Tensor | None) -> None:
        if offsets is not None:
            raise InvalidArgumentError(
                f"table {self.name!r}: found offsets with an input of shape {tuple(values.shape)}, "
                "whose rows are the bags; omit offsets"
            )

    def _given_offsets(self, values: Tensor, offsets: Tensor | None) -> Tensor:
        if values.dim() != 1 or offsets is None:
            raise InvalidArgumentError(
                f"table {self.name!r}: input must be (b, n), or (n,) with offsets; found shape "
                f"{tuple(values.shape)} with{'out' if offsets is None else ''} offsets",
                shape=tuple(values.shape),
            )
        if offsets.dim() != 1:
            raise InvalidArgumentError(
                f"table {self.name!r}: offsets must have one dimension, found shape "
                f"{tuple(offsets.shape)}",
                shape=tuple(offsets.shape),
            )
        return offsets

    def _check_weights(self, values: Tensor, weights: Tensor | None) -> None:
        if weights is None:
            return
        if self.mode != "sum":
            raise InvalidArgumentError(
                f"table {self.name!r}: per_sample_weights require mode 'sum', found {self.mode!r}"
            )
        if weights.shape != values.shape:
            raise InvalidArgumentError(
                f"table {self.name!r}: per_sample_weights must have the shape of the input, "
                f"{tuple(values.shape)}, found {tuple(weights.shape)}",
                shape=tuple(weights.shape),
            )

    def extra_repr(self) -> str:
        return f"{self.embedding_dim}, mode={self.mode!r}, name={self.name!r}"


def _parts(given: Any, what: str) -> tuple[Tensor, list[int] | None]:
    """Returns the flat values and the length of each bag, for a nested tensor or lists of different
    lengths; returns None as lengths for anything else that can be a tensor."""
    if isinstance(given, (list, tuple)) and len({np.size(each) for each in given}) > 1:
        parts = [to_tensor(each, what).reshape(-1) for each in given]
        return torch.cat(parts), [len(each) for each in parts]
    values = to_tensor(given, what)
    if not values.is_nested:
        return values, None
    return flat_ids(values), [each.numel() for each in values.unbind()]


def _with_end(starts: Tensor, count: int) -> npt.NDArray[np.int64]:
    ends = np.empty(len(starts) + 1, np.int64)
    ends[:-1] = starts.numpy()
    ends[-1] = count
    return ends


def _are_sound(ends: npt.NDArray[np.int64], count: int) -> bool:
    """Returns whether offsets start with 0, are non-decreasing, and end with `count`."""
    try:
        check_offsets(ends, count, "offsets")
    except InvalidArgumentError:
        return False
    return True


def _are_tensors(*given: Any) -> bool:
    return all(each is None or isinstance(each, Tensor) for each in given)
