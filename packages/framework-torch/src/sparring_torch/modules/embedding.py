"""`Embedding`: replaces `torch.nn.Embedding` and needs no number of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import StorageLike
from sparring.contracts import AdmissionLike, ExpiryLike, Initializer
from sparring_torch.device.groups import DeviceGroup, single_id_offsets
from sparring_torch.device.memory import memory_errors
from sparring_torch.device.path import DevicePath
from sparring_torch.jagged.ids import flat_ids, is_flat, to_device_ids, to_integer_ids, to_tensor
from sparring_torch.lookup.batch_lookup import Ids
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.single_table import SingleTable, explain_torch_arguments
from sparring_torch.modules.table_configs import EmbeddingConfig, choose_storage, declare_table
from sparring_torch.modules.table_module import untraced
from sparring_torch.state.table_names import find_free_table_name

__all__ = ["Embedding"]


class Embedding(SingleTable):
    """Looks up one embedding per id, for ids of any shape: ``(*)`` → ``(*, embedding_dim)``.

    Ids may be any int64; they are not declared in advance. See `EmbeddingBagCollection` for training
    and evaluation.

    Args:
        embedding_dim: number of elements of an embedding.
        padding_idx: an id that reads as zeros and gets no gradient and no row.
        name: name of the table. Set it for tables that are saved, or whose initial rows must be the
            same in every run. None selects the first free name of ``embedding``, ``embedding_1``, ….
        dtype: dtype of stored rows: float32, float64, float16, bfloat16 or int8. The output is float32
            for 16-bit rows.
        initializer: initial value of embeddings; None means uniform in ±0.05.
        num_embeddings: maximum number of rows in the storage; None sets no limit.
        admission: decides which new ids get a row, see `EmbeddingConfig`; None admits all ids.
        seed: determines, together with the name and the id, the initial value of an embedding.
        placement: which ranks store the rows, see `EmbeddingConfig`.
        expire: TTL of rows that are not trained, see `EmbeddingConfig`.
        storage: storage of the rows.
        device: device of the rows, see `EmbeddingBag`.
        container: container of the table; None leaves the choice to the `Optimizer`.
        shared: whether other modules may use the same rows: a second module that declares the name of
            the table raises an error unless one of both has ``shared=True``.

    Raises:
        InvalidArgumentError: a number is out of range, or a dtype or initializer is unknown.

    Examples:
        >>> import torch
        >>> from sparring_torch import Embedding
        >>> items = Embedding(4, name="items")
        >>> items(torch.tensor([[7, -1], [10**12, 7]])).shape
        torch.Size([2, 2, 4])
    """

    @explain_torch_arguments
    def __init__(  # noqa: PLR0913 - torch.nn.Embedding has many keyword arguments, too
        self,
        embedding_dim: int,
        *,
        padding_idx: int | None = None,
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
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.name = find_free_table_name("embedding", self) if name is None else name
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
        self.agent = TrainAgent(declared, [(self.name, "sum")], container, shared=shared)
        self.register_for_ops()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch.nn
        """Returns embeddings ``(*, embedding_dim)`` of ids ``(*)``, on the device of the ids.

        Nested tensors give nested tensors. Arrays and lists are converted to tensors.

        Args:
            input: the ids. Values of other dtypes than int64 are converted if that changes no value.

        Raises:
            InvalidArgumentError: a value is not a valid id.
        """
        if not isinstance(input, Tensor) or input.is_nested:
            return self._forward_converted(input)
        if torch.compiler.is_compiling():
            found: Tensor = torch.ops.sparring.lookup(
                input, *self.op_arguments(), self.embedding_dim
            )
            return found
        return self._eager(input)

    def _eager(self, input: Tensor) -> Tensor:  # noqa: A002 - as in `forward`
        is_training = self.is_training
        path = self.agent.path_for(input, is_training=is_training)
        if path is not None:
            with memory_errors(path.device):
                return self._on_device(path, input)
        try:
            ids, kept = self._drop_padding(input)
        except Exception as error:
            self.agent.raise_on_all_ranks(error, is_training=is_training)
        (embeddings,) = self.agent.host.gather(ids, is_training=is_training)
        if kept is not None:
            padded = embeddings.new_zeros(input.numel(), self.embedding_dim)
            embeddings = padded.index_copy(0, kept, embeddings)
        embeddings = embeddings.view(*input.shape, self.embedding_dim)
        return embeddings if input.device.type == "cpu" else embeddings.to(input.device)

    def look_up(self, *arguments: Any) -> Tensor:
        """Returns the result of `forward` for an operator of torch, without recording a gradient.

        Args:
            *arguments: the ids ``(*)``.
        """
        with torch.no_grad():
            return self._eager(*arguments)

    def take_gradient(self, gradient: Tensor, *arguments: Any) -> None:
        """Adds the gradient of a lookup by an operator of torch to the gradients of the next step.

        Args:
            gradient: ``(*, embedding_dim)``.
            *arguments: arguments of the operator, as in `look_up`.
        """
        (values,) = arguments
        path = self.agent.path_of_gradient(values)
        gradient = gradient.view(-1, self.embedding_dim)
        if path is not None:
            group, kept = self._group(values)
            gradient = gradient if kept is None else gradient[kept]
            path.accumulate_sources(self.agent.container, [group], [gradient])
            return
        ids, kept = self._drop_padding(values)
        self.agent.host.take_gradient(ids, [(gradient if kept is None else gradient[kept]).cpu()])

    @untraced
    def _forward_converted(self, given: Any) -> Tensor:
        if not isinstance(given, Tensor):
            try:
                ids = to_tensor(given, f"ids of table {self.name!r}")
            except Exception as error:
                self.agent.raise_on_all_ranks(error, is_training=self.is_training)
            return self.forward(ids)
        embeddings = self.forward(flat_ids(given))
        if is_flat(given):
            jagged: Any = given
            return torch.nested.nested_tensor_from_jagged(embeddings, jagged.offsets())
        components = given.unbind()
        parts = torch.split(embeddings, [each.numel() for each in components])
        shaped = [
            part.view(*each.shape, self.embedding_dim)
            for part, each in zip(parts, components, strict=True)
        ]
        return torch.nested.as_nested_tensor(shaped, layout=given.layout)

    def _on_device(self, path: DevicePath, values: Tensor) -> Tensor:
        with self.agent.raising_on_all_ranks(path, is_training=self.is_training):
            group, kept = self._group(values)
        (embeddings,) = path.pool(self.agent.container, [group], is_training=self.is_training)
        if kept is not None:
            padded = embeddings.new_zeros(values.numel(), self.embedding_dim)
            embeddings = padded.index_copy(0, kept, embeddings)
        return embeddings.view(*values.shape, self.embedding_dim)

    def _group(self, values: Tensor) -> tuple[DeviceGroup, Tensor | None]:
        """Same as `_drop_padding`, on the device."""
        kept = None
        ids = to_device_ids(values, f"table {self.name!r}").reshape(-1)
        if self.padding_idx is not None:
            kept = (ids != self.padding_idx).nonzero().squeeze(1)
            ids = ids[kept]
        return DeviceGroup(self.name, "sum", [0], ids.contiguous(), single_id_offsets(ids)), kept

    def parse_input(self, input: Tensor) -> Ids:  # noqa: A002 - as in `forward`
        """Returns the ids that `forward` looks up.

        Args:
            input: see `forward`.

        Raises:
            InvalidArgumentError: a value is not a valid id.
        """
        given = to_tensor(input, f"ids of table {self.name!r}")
        return self._drop_padding(flat_ids(given) if given.is_nested else given)[0]

    def _drop_padding(self, values: Tensor) -> tuple[Ids, Tensor | None]:
        """Returns the ids to look up, and their positions in `values` if some are padding."""
        ids = to_integer_ids(values, f"table {self.name!r}").reshape(-1)
        kept = None
        if self.padding_idx is not None:
            kept = (ids != self.padding_idx).nonzero().squeeze(1)
            ids = ids[kept]
        return Ids(ids.contiguous().numpy(), [(0, len(ids))]), kept

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.embedding_dim}, name={self.name!r}{padding}"
