"""`TableModule`, the base class of modules with tables, and functions that find them in a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError
from sparring_torch import misuse
from sparring_torch.jagged.ids import to_ids, to_tensor
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_tensor import KeyedTensor
from sparring_torch.lookup.batch_lookup import Bags, Ids
from sparring_torch.lookup.lookup_ops import LookupModule
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.state.row_values import is_new_average, prepare_average
from sparring_torch.state.rows_in_state import RowsInState

__all__ = [
    "TableModule",
    "list_agents",
    "list_table_modules",
    "name_tables_by_path",
    "tables_device",
    "untraced",
]

Forward = TypeVar("Forward", bound=Callable[..., Any])


def untraced(forward: Forward) -> Forward:
    """Excludes a `forward` from `torch.compile`, which calls it between its graphs.

    A lookup is native code anyway, and tracing would create batches without calling ``__init__``, so
    the step would not know them.
    """
    # Unlike `torch.compiler.disable`, it imports torch._dynamo only when the function is called.
    marked: Any = torch._disable_dynamo(forward)  # type: ignore[attr-defined]
    return marked  # type: ignore[no-any-return]


class TableModule(LookupModule, RowsInState):
    """Base class of modules that look up embeddings in tables."""

    agent: TrainAgent
    missing_weight_reason = ""
    """Why `weight` cannot be read, if the reason is not that the module has tables."""

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "embedding_bags", "embeddings"):
            raise AttributeError(
                self.missing_weight_reason
                or f"{type(self).__name__} has no {name}, because its tables are not matrices; read "
                "rows with read_embeddings(ids), and write them with Embedding.from_pretrained or "
                "StepContainer.assign"
            )
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("weight", "embedding_bags", "embeddings"):
            raise AttributeError(
                f"{type(self).__name__} has no {name}, because its tables are not matrices; write rows "
                "with Embedding.from_pretrained or StepContainer.assign"
            )
        super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> NoReturn:
        # torch.jit.script calls it for each module.
        misuse.reject_scripting(
            f"{type(self).__name__} of {', '.join(map(repr, self.agent.table_names))}"
        )

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer applies the gradients of the rows."""
        return self.agent.has_optimizer

    def parse_input(self, *arguments: Any, **named: Any) -> Bags | Ids:
        """Returns the bags or ids that `forward` looks up for these arguments.

        Raises:
            InvalidArgumentError: see `forward`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement lookups for prefetching"
        )

    def num_rows(self) -> dict[str, int]:
        """Number of rows per table on this rank, including rows of which it stores only a block of
        columns."""
        return {name: self.agent.container.num_rows(name) for name in self.agent.table_names}

    def read_embeddings(self, ids: Any, table: str | None = None) -> Tensor:
        """Returns the current embeddings ``(n, dim)`` of ids ``(n,)`` without side effects.

        An id without a row reads as its initial value. All ranks must call it, each with any ids.

        Args:
            ids: a tensor, an array or a list.
            table: name of the table; None means the module's only table.

        Raises:
            InvalidArgumentError: a value is not a valid id, or the module has no such table.
        """
        names = self.agent.table_names
        if table is None and len(names) == 1:
            (table,) = names
        for name, former in self.agent.former_names.items():
            table = name if table == former else table
        if table not in names:
            raise InvalidArgumentError(
                f"read_embeddings: found table {table!r}; {format_suggestion(table, names)}",
                table=table,
            )
        container, keys, own_error = self.agent.container, np.empty(0, np.int64), None
        try:
            keys = to_ids(to_tensor(ids, f"ids of table {table!r}"), f"table {table!r}").numpy()
        except Exception as error:  # other ranks may be in the lookup
            own_error = error
        (found,) = container.lookup_all([(table, keys)], is_registered=False, own_error=own_error)
        return torch.from_numpy(found.rows[found.inverse])

    def _match_names(self, saved: Set[str]) -> dict[str, str]:
        agent = self.agent
        if agent.names_by_path and not agent.is_bound:
            # The saved model was wrapped, and this one is not yet.
            own = [name for name in agent.table_names if name not in saved]
            found = {name: each for name in own for each in saved if each.endswith(f".{name}")}
            if found:
                agent.rename(found)
        return super()._match_names(saved)

    # -- dtype of the output

    _output_dtype: torch.dtype | None = None
    """Set by `half`, `to` and similar methods; None means the dtype in which tables compute."""

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
    """Forward hook: converts embeddings to the module's dtype; stored rows stay unchanged."""
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


def _on_module(parent: nn.Module, _name: str, child: nn.Module | None) -> None:
    """Called by torch when a module is added to another one."""
    if child is not None and is_new_average(parent, child):
        name_tables_by_path(child)
        prepare_average(parent, child)


register_module_module_registration_hook(_on_module)


def list_agents(modules: nn.Module | Iterable[nn.Module]) -> list[TrainAgent]:
    """Returns the agents of all tables in the modules, each once, in order.

    Raises:
        InvalidArgumentError: `modules` contains something else, or no table.
    """
    return list({id(each.agent): each.agent for each in list_table_modules(modules)}.values())


def list_table_modules(modules: nn.Module | Iterable[nn.Module]) -> list[TableModule]:
    """Returns all submodules with tables, in order.

    Raises:
        InvalidArgumentError: `modules` contains something else, or no table.
    """
    roots: list[Any] = [modules] if isinstance(modules, nn.Module) else list(modules)
    found: dict[int, TableModule] = {}
    for root in roots:
        if not isinstance(root, nn.Module):
            raise InvalidArgumentError(
                f"Optimizer: found {type(root).__name__}, expected modules with tables; give ordinary "
                "parameters to an optimizer of torch.optim"
            )
        found |= {id(each): each for each in root.modules() if isinstance(each, TableModule)}
    if not found:
        raise InvalidArgumentError(
            f"Optimizer: found no table in {len(roots)} modules; give modules that contain an "
            "EmbeddingBagCollection, EmbeddingCollection, Embedding or EmbeddingBag of "
            "sparring_torch"
        )
    return list(found.values())


def name_tables_by_path(modules: nn.Module | Iterable[nn.Module]) -> None:
    """Gives tables with the same name different names, as in TorchRec.

    Only tables of collections from `sparring_torch.torchrec` are renamed, and only if another module
    has a table with the same name: the new name begins with the path of the module.

    Args:
        modules: the model, or its parts; parts of a sequence are numbered.

    Raises:
        InvalidArgumentError: such a table has rows already, or is in a given container.
    """
    roots = (
        [("", modules)]
        if isinstance(modules, nn.Module)
        else [(f"{number}.", each) for number, each in enumerate(modules)]
    )
    paths: dict[TrainAgent, str] = {}
    for prefix, root in roots:
        for path, each in root.named_modules():
            if isinstance(each, TableModule) and isinstance(each.agent, TrainAgent):
                paths.setdefault(each.agent, f"{prefix}{path}".strip("."))
    counts = Counter(name for agent in paths for name in agent.table_names)
    for agent, path in paths.items():
        same = [name for name in agent.table_names if counts[name] > 1]
        if not agent.names_by_path or agent.shared or not same or not path:
            continue
        if agent.is_bound:
            misuse.reject_same_names(same)
        agent.rename({name: f"{path}.{name}" for name in same})


def tables_device(model: nn.Module) -> torch.device:
    """Returns the best device for a model: the GPU of its tables if any are on one, else the CPU.

    Args:
        model: a module with tables.

    Raises:
        InvalidArgumentError: the module has no tables.

    Examples:
        >>> from sparring_torch import Embedding, tables_device
        >>> tables_device(Embedding(4, name="items"))
        device(type='cpu')
    """
    devices = [agent.device for agent in list_agents(model)]
    return next((each for each in devices if each.type != "cpu"), torch.device("cpu"))
