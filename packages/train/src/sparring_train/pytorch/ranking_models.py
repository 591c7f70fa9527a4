"""Models whose ``forward`` returns a user vector and an item vector, for the loss `ranking`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from sparring_torch import (
    EmbeddingBagConfig,
    EmbeddingCollection,
    JaggedTensor,
    KeyedJaggedTensor,
)
from sparring_train.hookspecs import ModelRequest
from sparring_train.pytorch.embedding_tables import build_embedding_bags

__all__ = ["SequenceNetwork", "TwoTowers"]


class TwoTowers(nn.Module):
    """See `TwoTowersModel`.

    ::

        bags of the user's features ──► tables ──► joined ──► layers ──► (b, dim)
        bags of the item's features ──► tables ──► joined ──► layers ──► (b, dim)
    """

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        section = request.section
        self._user, self._item = section.user, section.item
        self.feature_names = [*section.user, *section.item]
        self.embeddings = build_embedding_bags(request, self.feature_names)
        dim, layers = section.embedding_dim, section.layers
        self.user_tower = _tower(len(section.user) * dim, layers, dim)
        self.item_tower = _tower(len(section.item) * dim, layers, dim)

    def forward(self, numbers: Tensor, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        """Returns vectors of users and items, ``(b, dim)`` each."""
        pooled = self.embeddings(features)
        users, items = ([pooled[name] for name in names] for names in (self._user, self._item))
        return _through(users, self.user_tower), _through(items, self.item_tower)


def _tower(width: int, layers: Sequence[int], dim: int) -> nn.Sequential | None:
    if not layers:
        return None
    made: list[nn.Module] = []
    for below, above in pairwise((width, *layers)):
        made += [nn.Linear(below, above), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(layers[-1], dim))


def _through(embeddings: list[Tensor], tower: nn.Sequential | None) -> Tensor:
    if tower is None:
        return torch.stack(embeddings).sum(0)
    vectors: Tensor = tower(torch.cat(embeddings, dim=1))
    return vectors


class SequenceNetwork(nn.Module):
    """See `SequenceModel`.

    ::

        last n items ──► table ──► + positions ──► blocks of self-attention ──► last position (b, dim)
        next item    ──► table ──► (b, dim)

    A history is right-aligned in its n positions, so that the last item is always at the last one.
    """

    def __init__(self, request: ModelRequest) -> None:
        super().__init__()
        section = request.section
        self._history, self._item = section.history, section.item
        self.feature_names = [section.history, section.item]
        item = request.schema.feature(section.item)
        assert item is not None
        config = replace(
            EmbeddingBagConfig.of(request.tables[item.table_name]),
            feature_names=self.feature_names,
        )
        self.embeddings = EmbeddingCollection(
            [config], storage=request.storage, container=request.container
        )
        dim = section.embedding_dim
        self.positions = nn.Parameter(torch.empty(section.length, dim).normal_(0, 0.02))
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(section.dropout)
        self.blocks = nn.ModuleList(
            AttentionBlock(dim, section.heads, section.hidden_layer, section.dropout)
            for _ in range(section.blocks)
        )

    def forward(self, numbers: Tensor, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        """Returns vectors of the histories and of items, ``(b, dim)`` each."""
        found = self.embeddings(features)
        history, is_there = _last(found[self._history], len(self.positions))
        states = self.dropout(self.norm(history + self.positions))
        places = torch.arange(len(self.positions), device=states.device)
        is_before = places[:, None] >= places
        # A position without an item attends to itself, so that the softmax is defined.
        sees = is_before & is_there[:, None, :] | (places[:, None] == places)
        for block in self.blocks:
            states = block(states, sees[:, None])
        return states[:, -1], found[self._item].values()


def _last(history: JaggedTensor, length: int) -> tuple[Tensor, Tensor]:
    """Returns the last embeddings of each history ``(b, length, dim)``, right-aligned, and their mask."""
    values, lengths = history.values(), history.lengths()
    ends = lengths.cumsum(0)
    back = torch.arange(length, 0, -1, device=values.device)
    is_there = back <= lengths[:, None]
    # Missing positions read the row of zeros after the last embedding.
    places = torch.where(is_there, ends[:, None] - back, values.shape[0])
    padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
    return padded[places], is_there


class AttentionBlock(nn.Module):
    """Self-attention and a feed-forward layer, each with a residual connection and layer norm."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.attention_in = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.layer_in = nn.Linear(dim, hidden)
        self.layer_out = nn.Linear(hidden, dim)
        self.attention_norm, self.layer_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, sees: Tensor) -> Tensor:
        size, length, dim = states.shape
        parts = self.attention_in(states).view(size, length, 3, self._heads, dim // self._heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=sees)
        mixed = self.attention_out(mixed.transpose(1, 2).reshape(size, length, dim))
        states = self.attention_norm(states + self.dropout(mixed))
        deep = self.layer_out(gelu(self.layer_in(states)))
        normed: Tensor = self.layer_norm(states + self.dropout(deep))
        return normed
