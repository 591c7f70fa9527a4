"""Collections whose tables are separate, as in TorchRec, also if two of them have the same name."""

from __future__ import annotations

from typing import Any

from sparring_torch.modules import embedding_bag_collection, embedding_collection

__all__ = ["EmbeddingBagCollection", "EmbeddingCollection"]


class EmbeddingBagCollection(embedding_bag_collection.EmbeddingBagCollection):
    """`sparring_torch.EmbeddingBagCollection` for models of several collections.

    If another collection of the model has a table with the same name, both tables have separate rows:
    when the model is planned, wrapped or gets an optimizer, the path of the collection becomes part of
    the table's name, for example ``query.items``.

    Args:
        *arguments: arguments of `sparring_torch.EmbeddingBagCollection`.
        **settings: arguments of `sparring_torch.EmbeddingBagCollection`; ``shared=True`` keeps the names,
            so that collections have the same rows.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.agent.names_by_path = True


class EmbeddingCollection(embedding_collection.EmbeddingCollection):
    """`sparring_torch.EmbeddingCollection` for models of several collections.

    See `EmbeddingBagCollection` for tables with the same name.

    Args:
        *arguments: arguments of `sparring_torch.EmbeddingCollection`.
        **settings: arguments of `sparring_torch.EmbeddingCollection`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.agent.names_by_path = True
