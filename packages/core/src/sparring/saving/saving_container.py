"""`StepContainer.save`, `load` and `flush`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, cast, overload

from sparring.saving.agreeing import Rounds
from sparring.saving.requests import Loaded, Saved, State
from sparring.saving.saves import SaveOptions

if TYPE_CHECKING:
    from sparring.execution import Task
    from sparring.step import StepContainer

__all__ = ["SavingContainer"]


class SavingContainer:
    """The part of a `StepContainer` that saves, loads and flushes it."""

    @overload
    def save(
        self,
        url: str,
        *,
        blocking: Literal[True] = True,
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> Saved: ...

    @overload
    def save(
        self,
        url: str,
        *,
        blocking: Literal[False],
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> Task[Saved]: ...

    @overload
    def save(
        self,
        url: str,
        *,
        blocking: bool,
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> Saved | Task[Saved]: ...

    def save(
        self,
        url: str,
        *,
        blocking: bool = True,
        base: str | None = None,
        states: Mapping[str, State] | None = None,
        options: SaveOptions | None = None,
    ) -> Saved | Task[Saved]:
        """Saves all tables as they are after the last step, and what else a training needs.

        All ranks call it after the same step with the same `url`, which they all reach; each writes
        its own rows, and rank 0 commits. Other ways of writing to a storage than steps and the
        methods of `Storage` are not noticed while a save runs.

        Args:
            url: of the snapshot itself, as ``runs/a/step-000000123``: a path, or any URL of fsspec.
            blocking: return when it is committed. Otherwise steps go on meanwhile: rows that they
                change are kept for the save first. A failure then raises `BackgroundError` at the
                next step, which can be taken again; `close` waits for the save.
            base: write a delta over this snapshot, which must be `saves.base`. Where more changed
                than is counted, a full snapshot is written, and a warning logged.
            states: by name, what else is to be saved.
            options: how.

        Returns:
            What was saved; if not blocking, a task that gives it.

        Raises:
            InvalidArgumentError: a base since which changes are not counted, or ranks were given
                different URLs.
            SnapshotError: it exists already, or the file system failed, here or on another rank.
            InterruptedLoadError: a table holds a part of a snapshot, here or on another rank.
            DeadlineError: the save before it, or another rank, does not come to an end.
        """
        container = self._container()
        container.check_open()
        return container.saves.save(
            url,
            blocking=blocking,
            base=base,
            states=states or {},
            options=options or SaveOptions(),
        )

    @overload
    def load(
        self,
        url: str,
        *,
        blocking: Literal[True] = True,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> Loaded: ...

    @overload
    def load(
        self,
        url: str,
        *,
        blocking: Literal[False],
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> Task[Loaded]: ...

    @overload
    def load(
        self,
        url: str,
        *,
        blocking: bool,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> Loaded | Task[Loaded]: ...

    def load(
        self,
        url: str,
        *,
        blocking: bool = True,
        tables: Iterable[str] | None = None,
        is_base: bool = False,
    ) -> Loaded | Task[Loaded]:
        """Takes over a snapshot: rows, with state and scores, counters, admission, steps.

        All ranks call it, as many as there are now; each reads the partitions that it owns. What
        tables held before is lost. What was accumulated for the next step is dropped.

        Args:
            url: of the snapshot.
            blocking: return when all is there. Otherwise only what can be refused at once is, and
                rows come in on the event loop, while models are built and data opened. Whatever
                reads, changes or counts rows, or meets other ranks, waits for the end, as long as
                it takes; Ctrl-C in such a wait stops the load. A failure raises `BackgroundError`,
                or `PeerFailure` as it is, at the next lookup, step, save, load or `close`, unless
                the task's `result` has raised it.
            tables: load the rows of these only, and no counters; None: everything.
            is_base: count from now on which keys change, for a delta over this snapshot.

        Returns:
            What was loaded; if not blocking, a task that gives it.

        Raises:
            InvalidArgumentError: the snapshot has other tables, or ranks were given different
                snapshots. Nothing was changed.
            SnapshotError: there is no such snapshot, or it is damaged: tables may hold parts of it
                then, and `InterruptedLoadError` refuses lookups and steps until one was loaded.
                What goes wrong on one rank is raised on all, in its class, with the name of the
                rank as `rank`.
        """
        container = self._container()
        container.check_open()
        return container.loads.load(url, tables, is_base=is_base, blocking=blocking)

    @overload
    def flush(self, *, blocking: Literal[True] = True) -> None: ...

    @overload
    def flush(self, *, blocking: Literal[False]) -> Task[None]: ...

    def flush(self, *, blocking: bool = True) -> Task[None] | None:
        """Makes what steps have written as durable as the storages of the tables can.

        It runs on the event loop. All ranks call it.

        Args:
            blocking: return when that is so, on all ranks, however long it takes. Otherwise lookups,
                forward and backward passes go on meanwhile, and whatever changes rows waits for it,
                on several ranks for half the collective's deadline. A failure then raises
                `BackgroundError` at the next step, which can be taken again.

        Returns:
            A task, if not blocking.

        Raises:
            SparringError: a storage failed, here or, if blocking, on another rank. All others were
                flushed.
            DeadlineError: the flush before it does not end.
        """
        container = self._container()
        container.check_open()
        container.join_ahead()
        if not blocking:
            container.loads.check()
        storages = {
            entry.config.name: entry.storage
            for entry in container.entries()
            if entry.storage is not None
        }
        if not all(each.capabilities.concurrent_reads for each in storages.values()):
            container.saves.join()  # it reads beside
        if not blocking:
            return container.flushes.begin(storages, is_told=True)
        rounds = Rounds(container.collective, "flush")
        error: Exception | None = None
        try:
            container.loads.check()
            container.flushes.begin(storages, is_told=False).result()
        except Exception as failure:
            error = failure
        except BaseException as reason:
            rounds.leave(reason)
            raise
        rounds.end(error)
        return None

    def _container(self) -> StepContainer:
        return cast("StepContainer", self)
