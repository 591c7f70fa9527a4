"""Models of sparring-torch with columns as input."""

from __future__ import annotations

from torch import Tensor, nn

from sparring_torch import DLRM, DeepFM, KeyedJaggedTensor, MatrixFactorization
from sparring_train.hookspecs import ModelRequest
from sparring_train.pytorch.column_inputs import ColumnInputs
from sparring_train.pytorch.embedding_tables import build_embedding_bags

__all__ = ["ColumnDLRM", "ColumnDeepFM", "ColumnFactorization"]


class ColumnDLRM(DLRM):
    """A `DLRM` with columns as input."""

    def __init__(self, request: ModelRequest) -> None:
        section = request.section
        super().__init__(
            build_embedding_bags(request),
            dense_in_features=max(len(request.schema.numbers), 1),
            dense_arch_layer_sizes=[*section.bottom_mlp, section.embedding_dim],
            over_arch_layer_sizes=[*section.top_mlp, 1],
        )

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        return super().forward(_never_none(dense_features), sparse_features)


class ColumnDeepFM(DeepFM):
    """A `DeepFM` with columns as input that returns logits."""

    def __init__(self, request: ModelRequest) -> None:
        section = request.section
        super().__init__(
            max(len(request.schema.numbers), 1),
            build_embedding_bags(request),
            section.hidden_layer,
            section.deep_layer,
        )

    def forward(self, dense_features: Tensor, sparse_features: KeyedJaggedTensor) -> Tensor:
        return self.logits(_never_none(dense_features), sparse_features)


def _never_none(numbers: Tensor) -> Tensor:
    """Returns numbers ``(b, k)``. If k is 0, returns ones, from which layers learn a constant vector."""
    return numbers if numbers.shape[1] else numbers.new_ones((numbers.shape[0], 1))


class ColumnFactorization(MatrixFactorization):
    """A `MatrixFactorization` with columns as input."""

    def __init__(self, request: ModelRequest) -> None:
        self.names = request.section.user, request.section.item
        user, item = map(request.schema.feature, self.names)
        assert user is not None
        assert item is not None
        known = request.label_range
        super().__init__(
            request.tables[user.table_name],
            request.tables[item.table_name],
            mean=0.0 if known is None else known.mean,
            storage=request.storage,
            container=request.container,
        )
        self.penalties = {
            "embedding_l2": request.section.embedding_l2,
            "bias_l2": request.section.bias_l2,
        }

    # All models of sparring-train have this signature.
    def forward(self, numbers: Tensor, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[override]
        user, item = (features[name].values() for name in self.names)
        return super().forward(user, item)

    def training_loss(self, inputs: ColumnInputs) -> Tensor:
        """Returns the sum over the batch of squared errors and of penalties on the parameters used."""
        assert inputs.labels is not None
        user, item = (inputs.ids[name] for name in self.names)
        return self.loss(user, item, inputs.labels, weights=inputs.weights, **self.penalties)

    def program(self) -> nn.Module:
        """Returns a module with users and items ``(b,)`` as inputs and ratings ``(b,)`` as output."""
        return _RatingProgram(self)

    def program_inputs(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Returns example inputs of the program."""
        return ids[:, 0].contiguous(), ids[:, 0].contiguous()


class _RatingProgram(nn.Module):
    """Computes ratings ``(b,)`` from users and items, ``(b,)`` each."""

    def __init__(self, model: MatrixFactorization) -> None:
        super().__init__()
        self.model = model

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return MatrixFactorization.forward(self.model, users, items)
