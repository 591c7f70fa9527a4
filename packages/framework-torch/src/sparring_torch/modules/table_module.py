"""`TableModule`: the base of modules that look up in tables; and those found in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_ids, to_tensor
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_tensor import KeyedTensor
from sparring_torch.lookup.batch_lookup import Bags, Ids
from sparring_torch.lookup.lookup_ops import LookupModule
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.misuse import reject_scripting
from sparring_torch.state.rows_in_state import RowsInState

__all__ = ["TableModule", "list_agents", "list_table_modules", "tables_device", "untraced"]

Forward = TypeVar("Forward", bound=Callable[..., Any])


def untraced(forward: Forward) -> Forward:
    """Marks a `forward` that `torch.compile` calls as it is, between the graphs that it makes.

    A lookup is native already. Tracing would make batches without calling ``__init__``, of which the
    step knows nothing.
    """
    marked: Forward = torch.compiler.disable(forward)  # type: ignore[no-untyped-call]
    return marked


class TableModule(LookupModule, RowsInState):
    """The base of modules that look up in tables."""

    agent: TrainAgent
    explain_missing_weight = ""
    """Why its `weight` cannot be read, where that is for another reason than that it has tables."""

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "embedding_bags", "embeddings"):
            raise AttributeError(
                self.explain_missing_weight
                or f"{type(self).__name__} has no {name}: its tables are no matrices; read rows by "
                "read_embeddings(ids), and write them by Embedding.from_pretrained or "
                "StepContainer.assign"
            )
        return super().__getattr__(name)

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script calls it for each module.
        reject_scripting(f"{type(self).__name__} of {', '.join(map(repr, self.agent.table_names))}")

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer takes the gradients of the rows."""
        return self.agent.has_optimizer

    def parse_input(self, *arguments: Any, **named: Any) -> Bags | Ids:
        """Bags or ids that `forward` looks up for these arguments.

        Raises:
            InvalidArgumentError: as `forward`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it looks up")

    def num_rows(self) -> dict[str, int]:
        """Table name → rows held on this rank."""
        return {name: self.agent.container.num_rows(name) for name in self.agent.table_names}

    def read_embeddings(self, ids: Any, table: str | None = None) -> Tensor:
        """Embeddings ``(n, dim)`` of ids ``(n,)``, as they are now; changes nothing.

        An id without a row reads as its initial value. All ranks call it, each with ids of its own.

        Args:
            ids: a tensor, an array or a list.
            table: where to look; None: in the only table.

        Raises:
            InvalidArgumentError: a value is no id, or `table` is none of this module's.
        """
        names = self.agent.table_names
        if table is None and len(names) == 1:
            (table,) = names
        if table not in names:
            raise InvalidArgumentError(
                f"read_embeddings: found table {table!r}; {format_suggestion(table, names)}",
                table=table,
            )
        container, keys, own_error = self.agent.container, np.empty(0, np.int64), None
        try:
            keys = to_ids(to_tensor(ids, f"ids of table {table!r}"), f"table {table!r}").numpy()
        except Exception as error:  # other ranks have begun their lookup
            own_error = error
        (found,) = container.lookup_all([(table, keys)], is_registered=False, own_error=own_error)
        return torch.from_numpy(found.rows[found.inverse])

    # -- dtype of the output

    _output_dtype: torch.dtype | None = None
    """As the module was told by `half`, `to` and the like; None: that in which tables compute."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        before = self._output_dtype or self.agent.output_dtype
        after = fn(torch.empty(0, dtype=before)).dtype
        if after is not before:
            if self._output_dtype is None:
                self.register_forward_hook(_convert_output)
            self._output_dtype = after
        return self


def _convert_output(module: nn.Module, _: Any, output: Any) -> Any:
    """Forward hook: embeddings in the dtype of the module; rows stay as they are stored."""
    assert isinstance(module, TableModule)
    dtype = module._output_dtype
    if isinstance(output, KeyedTensor):
        return KeyedTensor._from_valid(
            output.keys(), output.length_per_key(), output.values().to(dtype)
        )
    if isinstance(output, dict):
        return {
            name: JaggedTensor._from_valid(each.values().to(dtype), None, each.lengths())
            for name, each in output.items()
        }
    return output.to(dtype)


def list_agents(modules: nn.Module | Iterable[nn.Module]) -> list[TrainAgent]:
    """The agents in some modules and their parts, each once, in the order of the modules.

    Raises:
        InvalidArgumentError: something else than modules, or no table in any of them.
    """
    return list({id(each.agent): each.agent for each in list_table_modules(modules)}.values())


def list_table_modules(modules: nn.Module | Iterable[nn.Module]) -> list[TableModule]:
    """The modules with tables in some modules and their parts, in their order.

    Raises:
        InvalidArgumentError: as `list_agents`.
    """
    roots: list[Any] = [modules] if isinstance(modules, nn.Module) else list(modules)
    found: dict[int, TableModule] = {}
    for root in roots:
        if not isinstance(root, nn.Module):
            raise InvalidArgumentError(
                f"Optimizer takes modules that hold tables, found {type(root).__name__}; give "
                "ordinary parameters to an optimizer of torch.optim"
            )
        found |= {id(each): each for each in root.modules() if isinstance(each, TableModule)}
    if not found:
        raise InvalidArgumentError(
            f"none of the {len(roots)} modules given holds a table; give modules that contain an "
            "EmbeddingBagCollection, EmbeddingCollection, Embedding or EmbeddingBag of "
            "sparring_torch"
        )
    return list(found.values())


def tables_device(model: nn.Module) -> torch.device:
    """Where a model does best: on the GPU of its tables, if any of them lie on one."""
    devices = [agent.device for agent in list_agents(model)]
    return next((each for each in devices if each.type != "cpu"), torch.device("cpu"))
