"""`scan`: inspects a model and its optimizers without changing them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sparring.adapter import DistributionReport, ModuleReport, Outcome
from sparring_torch.modules.table_module import TableModule
from sparring_torch.transpiler.rejections import RejectionFinder, find_optimizer_rejection
from sparring_torch.transpiler.replacements import Kind, find_kind

__all__ = ["FoundTable", "Scan", "scan"]

_SERVED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A module that will be replaced.

    Args:
        module: the module.
        kind: how it is replaced.
        paths: paths in the model.
        table: name of the table, or the prefix of the names of several.
        place: number of the optimizer's group with its weight; None if no optimizer has it.
    """

    module: nn.Module
    kind: Kind
    paths: tuple[str, ...]
    table: str
    place: int | None

    @property
    def is_trained(self) -> bool:
        """Whether an optimizer has its weight."""
        return self.place is not None


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of `scan`.

    Args:
        report: report on all modules.
        found: modules to replace.
        tables: modules that already have tables.
        owner: number of the optimizer with the embeddings; None if there is none.
        table_places: number of its group for each of `tables`.
    """

    report: DistributionReport
    found: tuple[FoundTable, ...]
    tables: tuple[TableModule, ...]
    owner: int | None
    table_places: tuple[int | None, ...]


def scan(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    is_lazy: bool,
    is_served: bool,
    is_sharded: bool,
    keep: Collection[str],
) -> Scan:
    """Inspects all modules of a model, and its optimizers.

    Args:
        model: a model on one machine.
        optimizers: optimizers of its parameters.
        is_lazy: whether rows without a gradient may stay unchanged although the optimizer changes them.
        is_served: whether a service stores the tables.
        is_sharded: whether FSDP2 shards ordinary parameters over ranks.
        keep: paths of modules that are not replaced.
    """
    scanner = _Scanner(model, optimizers, keep, is_served, is_sharded)
    scanner.scan_program()
    for module in model.modules():
        scanner.scan_module(module)
    scanner.scan_optimizer(is_lazy)
    return Scan(
        DistributionReport(tuple(scanner.reports)),
        tuple(scanner.found),
        tuple(scanner.tables),
        scanner.owner,
        tuple(scanner.table_places),
    )


class _Scanner:
    """One pass over a model."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        keep: Collection[str],
        is_served: bool,
        is_sharded: bool,
    ) -> None:
        self._is_served, self._is_cut = is_served, is_sharded
        self._model, self._optimizers, self._keep = model, optimizers, set(keep)
        self.reports: list[ModuleReport] = []
        self.found: list[FoundTable] = []
        self.tables: list[TableModule] = []
        self.table_places: list[int | None] = []
        self.owner: int | None = None
        self._paths: dict[int, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            self._paths.setdefault(id(module), []).append(path)
        self._groups = {
            id(each): (number, place)
            for number, optimizer in enumerate(optimizers)
            for place, group in enumerate(optimizer.param_groups)
            for each in group["params"]
        }
        self._why_not = RejectionFinder(model, optimizers, self._paths)
        self._inside: set[int] = set()

    def scan_program(self) -> None:
        """Finds problems that do not depend on modules."""
        model = self._model
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            self._reject(model, "give the module inside of it; distribute wraps it again")
        if isinstance(model, torch.jit.ScriptModule):
            self._reject(model, "it is scripted; give the module from which it was created")
        for path in sorted(self._keep - {path for each in self._paths.values() for path in each}):
            reason = "it is in keep, but the model has no such path"
            self.reports.append(ModuleReport(path, "", Outcome.UNSUPPORTED, reason))
        for optimizer in self._optimizers:
            reason = ""
            if any("initial_lr" in group for group in optimizer.param_groups):
                reason = (
                    "a scheduler was created for it; create schedulers after distribute, for the new "
                    "optimizer"
                )
            if type(optimizer).__module__.startswith("sparring_torch."):
                reason = "it is already an optimizer of rows; give optimizers of torch.optim"
            if reason:
                self._reject_optimizer(optimizer, reason)

    def scan_module(self, module: nn.Module) -> None:
        """Decides whether to replace, keep or reject a module. Skips parts of modules with tables."""
        if id(module) in self._inside:
            return
        kind = find_kind(module)
        if isinstance(module, TableModule):
            self.tables.append(module)
            self._inside |= {id(each) for each in module.modules()}
            number, place = self._groups.get(id(module.anchor), (None, None))
            self.owner = number if self.owner is None else self.owner
            self.table_places.append(place)
            self._report(module, Outcome.KEPT, "it already has tables")
        elif kind is None or not self._keep.isdisjoint(self._paths[id(module)]):
            own = [(name, each) for name, each in module._parameters.items() if each is not None]
            reason = "ordinary parameters" if kind is None else "named in keep"
            if self._is_cut and any(not each.ndim for _, each in own):
                scalars = ", ".join(name for name, each in own if not each.ndim)
                self._reject(
                    module,
                    f"FSDP2 shards no parameter without dimensions: {scalars}; give it shape (1,)",
                )
            elif own:
                self._report(module, Outcome.KEPT, reason + self._is_cut * ", FSDP2 on many ranks")
        else:
            self._inside |= {id(each) for each in module.modules()}
            self._scan_embedding(module, kind)

    def _scan_embedding(self, module: nn.Module, kind: Kind) -> None:
        where = self._paths[id(module)]
        weights = kind.weights(module)
        places = [self._groups[id(each)] for each in weights if id(each) in self._groups]
        reason = self._why_not.reason(module, kind) or self._find_reason_against(places)
        if self._is_served and any(each.dtype not in _SERVED_DTYPES for each in weights):
            reason = reason or (
                "a service supports rows of float32, float16 or bfloat16, but its weight is "
                f"{weights[0].dtype}"
            )
        if reason:
            self._reject(module, f"{reason}; or keep the module as it is: keep=[{where[0]!r}]")
            return
        if places and self.owner is None:
            self.owner = places[0][0]
        table = _table_name(where[0], {each.table for each in self.found})
        note = kind.note(module)
        if not places:
            note = "no optimizer has its weight: rows are read only"
        elif not any(each.requires_grad for each in weights):
            note = "frozen: rows are read only"
        said = f"table{'s' * kind.has_several} {kind.table_names(module, table)}"
        self._report(module, Outcome.REPLACED, said + (note and f"; {note}"))
        self.found.append(
            FoundTable(module, kind, tuple(where), table, places[0][1] if places else None)
        )

    def _find_reason_against(self, places: Sequence[tuple[int, int]]) -> str:
        for number, _ in places:
            if self.owner is not None and number != self.owner:
                return (
                    f"its weight is in optimizer {number}, but others are in optimizer {self.owner}; "
                    "give all of them to one optimizer, in separate groups if necessary"
                )
        return ""

    def scan_optimizer(self, is_lazy: bool) -> None:
        """Checks that the optimizer of the embeddings supports rows, and that there are embeddings."""
        trained = {
            each.place
            for each in self.found
            if each.place is not None
            and any(weight.requires_grad for weight in each.kind.weights(each.module))
        }
        for place in sorted(trained):
            assert self.owner is not None
            optimizer = self._optimizers[self.owner]
            reason = find_optimizer_rejection(
                optimizer, place, is_lazy=is_lazy, is_served=self._is_served
            )
            if reason:
                self._reject_optimizer(optimizer, reason)
                break
        is_empty = not self.found and not self.tables
        if is_empty and not any(each.outcome is Outcome.UNSUPPORTED for each in self.reports):
            self._reject(self._model, "it has no embeddings; use DistributedDataParallel of torch")

    def _report(self, module: nn.Module, outcome: Outcome, reason: str) -> None:
        path = ", ".join(each or "model" for each in self._paths[id(module)])
        self.reports.append(ModuleReport(path, type(module).__name__, outcome, reason))

    def _reject(self, module: nn.Module, reason: str) -> None:
        self._report(module, Outcome.UNSUPPORTED, reason)

    def _reject_optimizer(self, optimizer: torch.optim.Optimizer, reason: str) -> None:
        name = type(optimizer).__name__
        self.reports.append(ModuleReport("optimizer", name, Outcome.UNSUPPORTED, reason))


def _table_name(path: str, taken: Collection[str]) -> str:
    """Converts a path to the name of a table: letters, digits, ``_``, ``.``, ``-``."""
    name = re.sub(r"[^A-Za-z0-9_.\-]", "_", path)
    if not re.match(r"[A-Za-z_]", name):
        name = f"embedding.{name}"
    stem, number = name[:190], 1
    name = stem
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name
