"""Training of a run with TensorFlow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring import PluginManager, State, StepContainer
from sparring.adapter import num_threads
from sparring.contracts import UpdateMethod
from sparring.errors import ConfigError, NonFiniteGradientError
from sparring_tf import (
    Optimizer,
    broadcast,
    export_program,
    gather_state,
    own_errors,
    restore_state,
    trained_table,
)
from sparring_train.columns import ColumnBatch
from sparring_train.config.run import RunConfig
from sparring_train.hookspecs import OpenedModel, ProgramRequest, SavedModel
from sparring_train.keras.tasks import ColumnTask
from sparring_train.live.evaluation import is_evaluated
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.loop import run_training
from sparring_train.loop.model import StepResult
from sparring_train.loop.saved_model import saved_model
from sparring_train.named_classes import create
from sparring_train.optimizer_names import find_native_class, find_update_method
from sparring_train.run.ranks import Ranks
from sparring_train.run.result import Progress, TrainResult

__all__ = ["export", "open_model", "train"]


def train(config: RunConfig, plugin_manager: PluginManager, progress: Progress) -> TrainResult:
    """See `sparring_train.loop.loop.run_training`. Also sets the number of TensorFlow's threads.

    Raises:
        ConfigError, DataError, NonFiniteGradientError, PluginError: see `run_training`.
        ConfigError: `training.pipeline` is true.
    """
    if config.training.pipeline:
        raise ConfigError(
            "training.pipeline: true requires framework: torch, found tensorflow, whose lookups are part "
            "of its graph; remove it, or choose framework: torch",
            setting="training.pipeline",
        )

    def make(config: RunConfig, container: StepContainer) -> tuple[ColumnSource, _Trainer]:
        # TensorFlow does not change its threads after it has started them.
        with suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(num_threads())
        task = ColumnTask(config, plugin_manager, container)
        return task.source, _Trainer(config, task, plugin_manager)

    with own_errors():
        return run_training(config, plugin_manager, progress, make)


@contextmanager
def open_model(
    config: RunConfig, plugin_manager: PluginManager, saved: SavedModel
) -> Iterator[OpenedModel]:
    """See `sparring_train.loop.saved_model.saved_model`."""
    with _saved_task(config, plugin_manager, saved.snapshot_url, saved.rows) as task:
        yield _OpenedModel(task)


class _OpenedModel:
    """A saved model for predictions."""

    def __init__(self, task: ColumnTask) -> None:
        self._task, self.source = task, task.source
        self._predicted = tf.function(task.predicted, input_signature=task.input_signature)

    def predict(self, batch: ColumnBatch) -> Any:
        """See `OpenedModel.predict`."""
        return self._predicted(*self._task.inputs(batch)).numpy()


def export(config: RunConfig, plugin_manager: PluginManager, request: ProgramRequest) -> None:
    """Exports the model of a snapshot as a program; see `sparring_tf.export_program`.

    Raises:
        ConfigError, DataError: see `run_training`.
        InvalidArgumentError: the parameters belong to a different model, or the bundle exists.
        SnapshotError: the snapshot was not written by this framework, or is damaged.
        ProgramError, UnsupportedError: see `export_program`.
    """
    # The program reads rows from its serving snapshot, so they are not loaded here.
    with _saved_task(config, plugin_manager, request.snapshot_url, None) as task:
        signature, call = task.program()
        export_program(
            task.model,
            request.bundle,
            served=request.served,
            follow=request.follow,
            signature=signature,
            call=call,
        )


@contextmanager
def _saved_task(
    config: RunConfig,
    plugin_manager: PluginManager,
    snapshot_url: str,
    rows: Literal["snapshot", "storage"] | None,
) -> Iterator[ColumnTask]:
    def make(chosen: RunConfig, container: StepContainer) -> ColumnTask:
        task = ColumnTask(chosen, plugin_manager, container, is_saved=True)
        task.make_layers()
        return task

    def restore(task: ColumnTask, state: State) -> None:
        restore_state(state, model=task.model)

    with (
        own_errors(),
        saved_model(config, plugin_manager, snapshot_url, rows, make, restore) as task,
    ):
        yield task


class _Trainer:
    """A model and its optimizers: forward and backward pass in one graph, then the step."""

    def __init__(self, config: RunConfig, task: ColumnTask, plugin_manager: PluginManager) -> None:
        self._task = task
        choice = config.optimizer.sparse
        row = find_update_method(
            choice.name,
            plugin_manager,
            lambda: keras_optimizer(choice.name, choice.hyperparameters, "optimizer.sparse"),
        )
        # The optimizer rejects these options if it is one of Keras.
        options: dict[str, Any] = {"tables": choice.tables or None, "update": choice.update}
        if isinstance(row, UpdateMethod):
            rate = row.hyperparameters.model_fields["lr"].default
            options |= choice.hyperparameters
            options["learning_rate"] = options.pop("lr", rate)
        policy = config.training.non_finite_gradients
        self._rows = Optimizer(task.model, row, non_finite_gradients=policy, **options)
        self.container = self._rows.container
        self._ranks = Ranks(self.container.collective, self.container.quiesce)
        self._num_parts = config.training.micro_batches
        self._is_skipping = policy == "skip"
        self._is_evaluated = is_evaluated(config)
        self._num_dense_skipped = 0
        self._loss_and_gradients = tf.function(
            self._differentiated,
            input_signature=[*task.training_signature, tf.TensorSpec([], tf.float64)],
        )
        self._predicted = tf.function(task.predicted, input_signature=task.input_signature)
        with tf.init_scope():
            task.make_layers()
        variables = task.model.trainable_variables
        self._anchors = [each for each in variables if trained_table(each) is not None]
        self._ordinary = [each for each in variables if trained_table(each) is None]
        dense = config.optimizer.dense
        self._dense = keras_optimizer(dense.name, dense.hyperparameters, "optimizer.dense")
        self._dense_step: Callable[..., Any] = tf.function(self._apply_dense)
        if self._ordinary:
            self._dense.build(self._ordinary)
            self.container.quiesce()
            broadcast(self._ordinary, self.container.collective)

    def steps(self, batches: Iterator[Any], stop: threading.Event) -> Iterator[StepResult]:
        """See `sparring_train.loop.model.Trainer`."""
        for batch in batches:
            yield self._train_on(batch, stop)

    def _train_on(self, batch: Any, stop: threading.Event) -> StepResult:
        share = tf.constant(self._ranks.world_size / batch.num_examples, tf.float64)
        loss, rows, dense, outputs = 0.0, [], [], []
        for part in batch.split(self._num_parts):
            if not part.num_examples:
                continue
            with self.container.span("forward and backward"):
                tensors = self._task.training_tensors(part)
                found, row_gradients, gradients, own = self._loss_and_gradients(*tensors, share)
            if own is not None and self._is_evaluated:
                outputs.append(own.numpy())
            loss += float(found)
            rows.append(row_gradients)
            dense.append(gradients)
        summed = [tf.add_n(each) for each in zip(*dense, strict=True)]
        is_stopping = stop.is_set()
        if self._ranks.world_size > 1:
            # One exchange for the loss, the gradients, and whether any rank should stop.
            arrays = [*(each.numpy() for each in summed), np.array([loss, is_stopping])]
            with self.container.span("average gradients"):
                *means, (loss, stopping) = self._ranks.means(arrays)
            summed = [tf.convert_to_tensor(each) for each in means]
            is_stopping = bool(stopping > 0)
        # Checked before the tables change, so that a step is applied completely or not at all.
        broken = self._broken(summed)
        if broken is not None and not self._is_skipping:
            step = self.container.counters.steps
            raise NonFiniteGradientError(
                f"step {step}: the gradient of variable {broken!r} contains NaN or infinity; "
                "nothing was changed. Lower the learning rate, or set "
                "training.non_finite_gradients=skip",
                parameter=broken,
                step=step,
            )
        joined = [_joined(each) for each in zip(*rows, strict=True)]
        self._rows.apply(joined, self._anchors)
        if broken is not None:
            self._num_dense_skipped += 1
        elif summed:
            with self.container.span("dense optimizer"):
                self._dense_step(summed)
        joined_outputs = np.concatenate(outputs) if outputs else None
        return StepResult(batch, float(loss), batch.num_examples, is_stopping, joined_outputs)

    def predict(self, batch: Any) -> npt.NDArray[Any]:
        """See `sparring_train.loop.model.Trainer`."""
        predicted: npt.NDArray[Any] = self._predicted(*self._task.inputs(batch)).numpy()
        return predicted

    def states(self) -> dict[str, State]:
        """See `sparring_train.loop.model.Trainer`."""
        return {
            "tensorflow": gather_state(**self._parts_with_state()),
            "skipped": State({"num_dense": self._num_dense_skipped}),
            **self._task.states(),
        }

    def restore(self, states: Mapping[str, State]) -> None:
        """See `sparring_train.loop.model.Trainer`."""
        optimizers = [self._rows, self._dense]
        chosen = [float(each.learning_rate) for each in optimizers]
        restore_state(states["tensorflow"], **self._parts_with_state())
        # Keras stores the learning rate as a variable, unlike other hyperparameters. The configured one
        # is used.
        for optimizer, rate in zip(optimizers, chosen, strict=True):
            optimizer.learning_rate = rate
        self._num_dense_skipped = states["skipped"].values["num_dense"]
        self._task.restore(states)

    def _parts_with_state(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"model": self._task.model, "tables": self._rows}
        return parts | {"dense": self._dense} if self._ordinary else parts

    def skipped(self) -> dict[str, int]:
        """Returns the number of skipped steps of ordinary variables."""
        return {"dense_steps_skipped_non_finite": self._num_dense_skipped}

    def versions(self) -> dict[str, str]:
        return {"tensorflow": tf.__version__, "keras": keras.__version__}

    def _differentiated(self, *tensors_and_share: Any) -> tuple[Any, list[Any], list[Any], Any]:
        *tensors, share = tensors_and_share
        with tf.GradientTape() as tape:
            loss = self._task.loss(*tensors)
            loss = loss * tf.cast(share, loss.dtype)
        rows, dense = tape.gradient(loss, [self._anchors, self._ordinary])
        return loss, rows, [tf.convert_to_tensor(each) for each in dense], self._task.outputs

    def _apply_dense(self, gradients: list[Any]) -> None:
        self._dense.apply(gradients, self._ordinary)

    def _broken(self, gradients: list[Any]) -> str | None:
        for gradient, variable in zip(gradients, self._ordinary, strict=True):
            if not np.isfinite(gradient.numpy()).all():
                return str(variable.path)
        return None


def _joined(parts: tuple[Any, ...]) -> Any:
    """Joins the gradients of an anchor in several micro-batches, which are added up by id."""
    if len(parts) == 1:
        return parts[0]
    return tf.IndexedSlices(
        tf.concat([each.values for each in parts], 0),
        tf.concat([each.indices for each in parts], 0),
        parts[0].dense_shape,
    )


def keras_optimizer(name: str, hyperparameters: Mapping[str, Any], setting: str) -> Any:
    """Creates the Keras optimizer that a configuration describes.

    Args:
        name: see `find_native_class`.
        hyperparameters: hyperparameters of the optimizer; `lr` is its learning rate.
        setting: the dotted key of the section, for messages.

    Raises:
        ConfigError: the optimizer does not exist, or does not accept these hyperparameters.
    """
    native = find_native_class(
        name, keras.optimizers, keras.optimizers.Optimizer, f"{setting}.name"
    )
    given = dict(hyperparameters)
    if "lr" in given:
        given["learning_rate"] = given.pop("lr")
    return create(native, native.__name__, setting, options=given)
