"""`EmbeddingBag`: the drop-in for `torch.nn.EmbeddingBag` that needs no number of embeddings."""

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
    """Bags of ids to one embedding each: ``(b, n)``, or ``(n,)`` with offsets, → ``(b, dim)``.

    Ids may be any int64, and none of them is declared beforehand. For training and evaluation
    see `EmbeddingBagCollection`.

    Args:
        embedding_dim: elements of an embedding.
        mode: ``mean``, torch's default, or ``sum``.
        padding_idx: this id is left out of its bag, and out of the mean's count.
        include_last_offset: offsets have the end, the number of ids, at their end.
        name: of the table; see `Embedding`.
        dtype: of rows, as they are stored: float32, float64, float16 or bfloat16. The output is
            float32 for 16-bit rows.
        initializer: what an id reads as before it was trained; None means uniform in ±0.05.
        num_embeddings: the most rows that the storage may hold; None sets no bound.
        admission: which unseen ids earn a row, as in `EmbeddingConfig`; None: all.
        seed: with the name and the id it determines an initial embedding.
        placement: which ranks keep the rows, as in `EmbeddingConfig`.
        expire: after how long without training rows are removed, as in `EmbeddingConfig`.
        storage: what keeps the rows.
        device: where they lie. On a GPU, ids that lie there are looked up, pooled and trained
            without a copy to the host; offsets are held within their range there, not checked.
            With `storage` ``hkv``; a storage with options of its own has a device among them.
        container: where the table lives; None leaves it to the `Optimizer`.

    Raises:
        InvalidArgumentError: a number out of range, an unknown mode, dtype or initializer.
    """

    @explain_torch_arguments
    def __init__(  # noqa: PLR0913 - torch.nn.EmbeddingBag is made by keywords too
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
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean"):
            raise InvalidArgumentError(
                f"EmbeddingBag: mode must be 'sum' or 'mean', found {mode!r}", mode=mode
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
        self.agent = TrainAgent(declared, [(self.name, mode)], container)
        self.register_for_ops()

    def forward(
        self,
        input: Tensor,  # noqa: A002 - torch.nn calls it so
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Pooled embeddings ``(b, embedding_dim)``, on the device of the ids.

        Args:
            input: ids ``(b, n)``, b bags of n ids; or ``(n,)`` with `offsets`; or a nested tensor of b
                bags. Arrays and lists, also of lists of different lengths, are taken too.
            offsets: ``(b,)`` starts, or ``(b + 1,)`` with `include_last_offset`.
            per_sample_weights: of the shape of `input`, for mode ``sum``; they may require a
                gradient.

        Raises:
            InvalidArgumentError: input and offsets do not fit, weights of another shape or in
                mode ``mean``, or a value is no id.
        """
        if not isinstance(input, Tensor) or input.is_nested:
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
        ids, offsets, weights, _places, _num_bags = arguments
        with torch.no_grad():
            return self._eager(ids, offsets, weights)

    def take_gradient(self, gradient: Tensor, *arguments: Any) -> Tensor | None:
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
        """A nested tensor, an array or lists as tensors that `forward` takes."""
        ids, lengths = _parts(given, f"ids of table {self.name!r}")
        if lengths is None:
            starts = None if offsets is None else to_tensor(offsets, "offsets")
            return ids, starts, None if weights is None else to_tensor(weights, "weights")
        if offsets is not None:
            raise InvalidArgumentError(
                f"table {self.name!r}: an input of {len(lengths)} bags takes no offsets; leave them out"
            )
        if weights is not None:
            weights, found = _parts(weights, f"per_sample_weights of table {self.name!r}")
            if found != lengths:
                raise InvalidArgumentError(
                    f"table {self.name!r}: per_sample_weights must be in bags as the input is, of "
                    f"lengths {lengths[:8]}, found {'none' if found is None else found[:8]}"
                )
        ends = lengths_to_offsets(torch.tensor(lengths, dtype=torch.int64))
        return ids, ends if self.include_last_offset else ends[:-1], weights

    def _group(self, values: Tensor, offsets: Tensor | None, weights: Tensor | None) -> DeviceGroup:
        """Bags that `forward` looks up, on the device."""
        self._check_weights(values, weights)
        ids = to_device_ids(values, f"table {self.name!r}").reshape(-1)
        ends = self._ends_on_device(values, offsets)
        weights = None if weights is None else weights.reshape(-1)
        if self.padding_idx is not None:
            is_kept = ids != self.padding_idx
            # Waits for the device: how many are left?
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
        """Bags that `forward` looks up."""
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
        """``(b + 1,)``: where each bag begins, and the end."""
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
        """As `_ends`, of any dtype; says what is wrong with them."""
        num_bags = len(starts) - 1 if self.include_last_offset else len(starts)
        if not self.include_last_offset:
            # An end is added here, so that a last start equal to the count is an empty bag.
            starts = torch.cat([starts, torch.full((1,), count, dtype=starts.dtype)])
        lengths = offsets_to_lengths(starts, count)
        if len(lengths) != num_bags:
            raise InvalidArgumentError(
                f"table {self.name!r}: with include_last_offset the last offset must be the "
                f"number of ids, {count}; found {int(starts[-1]) if len(starts) else 'none'}"
            )
        return lengths_to_offsets(lengths.to(torch.int64)).numpy()

    def _ends_on_device(self, values: Tensor, offsets: Tensor | None) -> Tensor:
        """``(b + 1,)``: what kernels may follow blindly, made without waiting for the device."""
        count = values.numel()
        if values.dim() == 2:
            self._check_no_offsets(values, offsets)
            num_bags, length = values.shape
            return torch.arange(num_bags + 1, device=values.device) * length
        starts = self._given_offsets(values, offsets).to(values.device, torch.int64)
        if self.include_last_offset and not len(starts):
            raise InvalidArgumentError(
                f"table {self.name!r}: with include_last_offset there is at least one offset"
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
                f"table {self.name!r}: an input of shape {tuple(values.shape)} has its bags in "
                "its rows and takes no offsets; leave them out"
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
                f"table {self.name!r}: per_sample_weights need mode 'sum', found {self.mode!r}"
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
    """Flat values and the length of each bag of a nested tensor, or of lists of different lengths; None
    of what is a tensor already, or can be one."""
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
    """Whether they begin with 0, never fall, and end with `count`."""
    try:
        check_offsets(ends, count, "offsets")
    except InvalidArgumentError:
        return False
    return True
