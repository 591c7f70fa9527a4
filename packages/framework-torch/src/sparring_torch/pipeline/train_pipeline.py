"""`TrainPipeline`: looks up the rows of the next batch while the current one is computed.

progress 1   │ batch 0: forward, backward, step │
look up      └── batch 1 ──┐
progress 2                 │ again: rows changed by step 0 │ batch 1: forward, backward, step │
look up                                                    └── batch 2 ──┐
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
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
    """The next batch, or the error of the iterator."""

    batch: In | None
    prefetch: BatchPrefetch | None = None
    error: Exception | None = None


class _IteratorBatches(Generic[In]):
    """Pending batches of iterators that the pipeline does not use at the moment.

    A batch is forgotten with its iterator. Some iterators, such as those of lists, do not support weak
    references; the last `MAX_ITERATORS` of them are kept, and a warning reports each lost batch.
    """

    MAX_ITERATORS = 8

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[[], Any], bool, _PendingBatch[In]]] = []

    def put(self, iterator: Iterator[In], pending: _PendingBatch[In]) -> None:
        """Keeps the next batch of `iterator`."""
        try:
            self._kept.append((weakref.ref(iterator), False, pending))
        except TypeError:
            self._kept.append((lambda: iterator, True, pending))
        strong = [each for each in self._kept if each[1]]
        if len(strong) > self.MAX_ITERATORS:
            self._kept.remove(strong[0])
            warnings.warn(
                f"TrainPipeline: found more than {self.MAX_ITERATORS} unfinished iterators, such as "
                "those of lists, and dropped the batch that was already taken from the oldest; if that "
                "is used again, this batch is missing. Finish iterators before starting others, or use "
                "iterators that support weak references, such as generators or those of a DataLoader",
                stacklevel=4,
            )

    def take(self, iterator: Iterator[In]) -> _PendingBatch[In] | None:
        """Removes and returns the next batch of `iterator`."""
        self._kept = [each for each in self._kept if each[0]() is not None]
        for each in self._kept:
            if each[0]() is iterator:
                self._kept.remove(each)
                return each[2]
        return None

    def clear(self) -> None:
        self._kept = []


class TrainPipeline(Generic[In, Out]):
    """Trains a model, and looks up each batch while the previous one is computed.

    It is used like TorchRec's pipelines::

        pipeline = TrainPipeline(model, [sparse, dense], torch.device("cpu"))
        batches = iter(loader)
        while True:
            try:
                output = pipeline.progress(batches)
            except StopIteration:
                break

    The model is called with a batch and returns ``(loss, output)``. Results are bit-identical to a
    loop that zeroes gradients, calls the model, calls backward and steps, because rows that a step
    changed after their lookup are looked up again.

    From the first batch, the pipeline learns which parts of a batch each module with tables
    receives. Modules that are called with computed values are not prefetched; `pipelined` lists those
    that are.

    All ranks must make the same calls. On several ranks, the step waits for the lookup of the next
    batch, because both need the exchange. A batch must not change after the iterator returned it.

    Args:
        model: model with tables in one container, which an `Optimizer` or `DistributedModelParallel`
            created.
        optimizer: one optimizer, or several that step one after another.
        device: device to which batches with a ``to(device)`` method are moved.
        execute_all_batches: False stops before the last batch of the iterator, as TorchRec does;
            True trains on it.
        micro_batches: number of batches per step, whose gradients are summed. The last step may
            have fewer.

    Raises:
        InvalidArgumentError: the model has no tables, or `micro_batches` is less than 1.

    Examples:
        >>> import torch
        >>> from sparring_torch import Embedding, Optimizer, TrainPipeline
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.items = Embedding(4, name="items")
        ...     def forward(self, ids):
        ...         found = self.items(ids)
        ...         return found.sum(), found
        >>> model = Model()
        >>> pipeline = TrainPipeline(model, Optimizer(model, torch.optim.SGD, lr=0.1))
        >>> pipeline.progress(iter([torch.tensor([1, 2]), torch.tensor([2, 3])])).shape
        torch.Size([2, 4])
        >>> pipeline.pipelined
        ['items']
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
        """The next batch of `_iterator`."""
        self._elsewhere = _IteratorBatches[In]()
        self._calls: list[Call] | None = None
        self._num_accumulated = 0

    @property
    def pipelined(self) -> list[str]:
        """Names of the modules whose lookups are prefetched; empty before the first batch."""
        modules = {id(call.module) for call in self._calls or ()}
        return [name for name, module in self._model.named_modules() if id(module) in modules]

    def drop_pending(self) -> None:
        """Drops the next batch, which was already taken from its iterator; of all iterators."""
        self._drop_prefetch()
        self._pending = None
        self._elsewhere.clear()

    def _drop_prefetch(self) -> None:
        if self._pending is not None and self._pending.prefetch is not None:
            self._pending.prefetch.drop()
            self._pending.prefetch = None

    def progress(self, dataloader_iter: Iterator[In]) -> Out:
        """Trains on one batch and starts the lookup of the next; returns the model's output.

        In evaluation mode, the model is only called.

        Args:
            dataloader_iter: iterator of batches. Calls with several iterators may alternate, for example
                for a short evaluation between training steps: a batch that was already taken from an
                iterator is processed in the next call with that iterator.

        Raises:
            StopIteration: all batches of this iterator were processed.
            Exception: the model, an optimizer or a storage failed. The batch and the accumulated
                gradients of its step are dropped, and the next call continues with the next batch.
        """
        if dataloader_iter is not self._iterator:
            self._change_iterator(dataloader_iter)
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

    def _change_iterator(self, iterator: Iterator[In]) -> None:
        if self._iterator is not None and self._pending is not None:
            self._drop_prefetch()
            self._elsewhere.put(self._iterator, self._pending)
        self._iterator = iterator
        self._pending = self._elsewhere.take(iterator)

    def _train_on(self, current: _PendingBatch[In]) -> Out:
        batch: Any = current.batch
        following = None
        if self._model.training or not self._executes_all:  # an evaluation needs no next batch
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
        """Starts the lookups of the next batch."""
        if following is None or following.error is not None or not self._calls:
            return
        try:
            following.prefetch = BatchPrefetch(self._container, self._calls, following.batch)
        except Exception as error:
            if self._container.collective.world_size > 1:
                # The other ranks started their lookup and wait for this rank.
                raise
            following.error = error

    @property
    def _container(self) -> StepContainer:
        return self._agents[0].container

    def _fetch(self) -> _PendingBatch[In] | None:
        """Returns the iterator's next batch on the device, or None after the last."""
        assert self._iterator is not None
        try:
            batch: Any = next(self._iterator)
        except StopIteration:
            return None
        except Exception as error:
            # Raised in its turn, so that the previous batch completes.
            return _PendingBatch(None, error=error)
        to = getattr(batch, "to", None)
        return _PendingBatch(batch if to is None else to(self._device))
