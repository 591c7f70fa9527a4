"""The loss `ranking`: a softmax over the items of a step on all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sparring_train.config.sections.kinds import Ranking
from sparring_train.loop.step_items import ItemCounts, StepItems
from sparring_train.pytorch.column_inputs import ColumnInputs
from sparring_train.run.ranks import Ranks

__all__ = ["ItemSoftmax"]


class ItemSoftmax:
    """Negative log likelihood of each example's item among the items of the step.

    Args:
        ranking: settings of the ranking.
        ranks: ranks that compute each step together.
    """

    def __init__(self, ranking: Ranking, ranks: Ranks) -> None:
        self._ranking, self._ranks = ranking, ranks
        self.counts = ItemCounts()

    def vectors(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Scales vectors to length 1 if the ranking requires it."""
        if not self._ranking.normalize:
            return users, items
        return normalize(users, dim=1), normalize(items, dim=1)

    def loss(self, pair: tuple[Tensor, Tensor], inputs: ColumnInputs) -> Tensor:
        """Returns the sum of the losses of this rank's examples.

        All ranks call it in each step, even a rank without examples.
        """
        ranking, step = self._ranking, inputs.step_items
        assert step is not None
        users, items = self.vectors(*pair)
        candidates = _gathered(items, step, self._ranks)
        logits = users @ candidates.T / ranking.temperature
        if ranking.log_q:
            logits = logits - torch.from_numpy(self.counts.add(step.ids)).to(logits)
        ids = torch.from_numpy(step.ids).to(logits.device)
        own = step.first + torch.arange(len(users), device=logits.device)
        # Other occurrences of the same item in the step are not negatives.
        is_same = ids[own][:, None] == ids
        is_same[torch.arange(len(users), device=logits.device), own] = False
        logits = logits.masked_fill(is_same, -torch.inf)
        losses = logits.logsumexp(1) - logits.gather(1, own[:, None]).squeeze(1)
        if ranking.positive is not None and inputs.labels is not None:
            losses = losses * (inputs.labels >= ranking.positive)
        return (losses if inputs.weights is None else losses * inputs.weights).sum()


def _gathered(vectors: Tensor, step: StepItems, ranks: Ranks) -> Tensor:
    """Concatenates the vectors of all ranks. Gradients are returned to the ranks of the vectors."""
    if ranks.world_size == 1:
        return vectors
    # With the anchor, ranks without an example take part in the exchange of gradients, too.
    anchor = torch.zeros((), requires_grad=True)
    gathered: Tensor = _Gathered.apply(vectors, anchor, step.first, ranks)  # type: ignore[no-untyped-call]
    return gathered


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, anchor: Tensor, first: int, ranks: Ranks) -> Tensor:  # noqa: ARG004
        ctx.part, ctx.ranks = slice(first, first + len(vectors)), ranks
        found = ranks.gathered(vectors.detach().cpu().contiguous().numpy())
        return torch.from_numpy(found).to(vectors.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        total = ctx.ranks.sum(gradient.cpu().contiguous().numpy())
        own = torch.from_numpy(total[ctx.part].copy()).to(gradient.device)
        return own, torch.zeros(()), None, None
