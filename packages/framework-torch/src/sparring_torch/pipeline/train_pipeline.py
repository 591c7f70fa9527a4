"""`TrainPipeline`: the rows of the next batch come while this one is computed.

progress 1   │ batch 0: forward, backward, step │
look up      └── batch 1 ──┐
progress 2                 │ again: what step 0 changed │ batch 1: forward, backward, step │
look up                                                 └── batch 2 ──┐
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from sparring import StepContainer
from sparring.errors import InvalidArgumentError
from sparring_torch.modules.table_module import list_agents
from sparring_torch.pipeline.batch_paths import Call, record_calls
from sparring_torch.pipeline.batch_prefetch import BatchPrefetch

__all__ = ["TrainPipeline"]

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(slots=True)
class _PendingBatch(Generic[In]):
    """A batch whose turn will come, or the error that came in its place."""

    batch: In | None
    prefetch: BatchPrefetch | None = None
    error: Exception | None = None


class TrainPipeline(Generic[In, Out]):
    """Trains a model, and looks each batch up while the one before it is computed.

    It has the shape of TorchRec's pipelines::

        pipeline = TrainPipeline(model, [sparse, dense], torch.device("cpu"))
        batches = iter(loader)
        while True:
            try:
                output = pipeline.progress(batches)
            except StopIteration:
                break

    The model is called with a batch and returns ``(loss, output)``. Results are bit for bit those of
    the loop that zeroes gradients, calls the model, calls backward and steps: rows that a step changed
    after they were looked up are looked up again, and only those.

    It learns from the first batch which parts of a batch the modules with tables are called with.
    Modules that are called with something else, computed in the forward pass, look up when they
    are called; `pipelined` says which do not.

    On several ranks, all of them make the same calls, and the step waits for the lookup of the next
    batch, because both need the exchange. A batch must not change once it was given.

    Args:
        model: holds modules with tables, all in one container, brought there by an `Optimizer`
            or `DistributedModelParallel`.
        optimizer: one optimizer, or several that are stepped one after the other.
        device: where batches that have ``to(device)`` go.
        execute_all_batches: False ends with the last batch that the iterator gives, and leaves it
            undone, as TorchRec's does; True trains on it first.
        micro_batches: batches for one step. Their gradients add up. Where batches end before a
            step is complete, it is made of those that there are.

    Raises:
        InvalidArgumentError: no module with tables, or a number below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        device: torch.device | str = "cpu",
        *,
        execute_all_batches: bool = True,
        micro_batches: int = 1,
    ) -> None:
        if micro_batches < 1:
            raise InvalidArgumentError(
                f"TrainPipeline: micro_batches must be at least 1, found {micro_batches}"
            )
        is_one = isinstance(optimizer, torch.optim.Optimizer)
        self._model = model
        self._optimizers: list[torch.optim.Optimizer] = (
            [optimizer] if is_one else list(optimizer)  # type: ignore[arg-type, list-item]
        )
        self._device = torch.device(device)
        self._executes_all = execute_all_batches
        self._micro_batches = micro_batches
        self._agents = list_agents(model)
        self._iterator: Iterator[In] | None = None
        self._pending: _PendingBatch[In] | None = None
        self._calls: list[Call] | None = None
        self._num_accumulated = 0

    @property
    def pipelined(self) -> list[str]:
        """The modules whose lookups are prefetched, by name; none before the first batch."""
        modules = {id(call.module) for call in self._calls or ()}
        return [name for name, module in self._model.named_modules() if id(module) in modules]

    def drop_pending(self) -> None:
        """Drops the batch that was taken from an iterator and whose turn has not come."""
        if self._pending is not None and self._pending.prefetch is not None:
            self._pending.prefetch.drop()
        self._pending = None

    def progress(self, dataloader_iter: Iterator[In]) -> Out:
        """Trains on one batch, and begins to look up the next. Returns the model's output.

        While the model is in evaluation mode, it is called only.

        Raises:
            StopIteration: all batches were trained on. Another iterator goes on with others; a
                batch that the last one gave, and whose turn has not come, is trained on first.
            Exception: what the model, an optimizer or a storage raised. The batch is given up with
                all that was accumulated for its step, and the next call goes on with the one after.
        """
        self._iterator = dataloader_iter
        current = self._pending or self._fetch()
        self._pending = None
        if current is None:
            raise StopIteration
        if current.error is not None:
            raise current.error
        try:
            return self._train_on(current)
        except BaseException:
            self._num_accumulated = 0
            raise

    def _train_on(self, current: _PendingBatch[In]) -> Out:
        batch: Any = current.batch
        following = self._pending = self._fetch()
        is_ending = following is None and not self._executes_all
        if current.prefetch is not None:
            if is_ending or not self._model.training:
                current.prefetch.drop()
                current.prefetch = None
            else:
                current.prefetch.give()
        if is_ending:
            raise StopIteration
        if not self._model.training:
            output: Out = self._model(batch)[1]
            return output
        if self._num_accumulated == 0:
            for optimizer in self._optimizers:
                optimizer.zero_grad()
        try:
            with self._container.span("forward"):
                loss, output = self._forward(batch, following)
        finally:
            if current.prefetch is not None:
                current.prefetch.withdraw()
        with self._container.span("backward"):
            loss.sum().backward()
        self._num_accumulated += 1
        if following is None or self._num_accumulated == self._micro_batches:
            self._num_accumulated = 0
            for optimizer in self._optimizers:
                optimizer.step()
        return output

    def _forward(self, batch: Any, following: _PendingBatch[In] | None) -> Any:
        if self._calls is not None:
            self._begin(following)
            return self._model(batch)
        with record_calls(self._model, batch) as seen:
            result = self._model(batch)
        self._calls = [call for call in seen.predictable if call.module.agent.can_prefetch]
        self._begin(following)
        return result

    def _begin(self, following: _PendingBatch[In] | None) -> None:
        """Begins the lookups of the next batch."""
        if following is None or following.error is not None or not self._calls:
            return
        try:
            following.prefetch = BatchPrefetch(self._container, self._calls, following.batch)
        except Exception as error:
            if self._container.collective.world_size > 1:
                # The other ranks have begun, and will not step without this one.
                raise
            following.error = error

    @property
    def _container(self) -> StepContainer:
        return self._agents[0].container

    def _fetch(self) -> _PendingBatch[In] | None:
        """The iterator's next batch, on the device; None after the last."""
        assert self._iterator is not None
        try:
            batch: Any = next(self._iterator)
        except StopIteration:
            return None
        except Exception as error:
            # It is raised when its turn comes: the batch before it is whole.
            return _PendingBatch(None, error=error)
        to = getattr(batch, "to", None)
        return _PendingBatch(batch if to is None else to(self._device))
