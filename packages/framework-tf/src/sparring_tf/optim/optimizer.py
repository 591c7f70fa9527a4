"""`Optimizer`: Keras optimizers for the rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import (
    PlanLike,
    collect_open_storages,
    join_container,
    non_finite_policy,
    resolve_method,
)
from sparring.contracts import UpdateMethod
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.lookup.strategies import reject_strategies
from sparring_tf.lookup.table_agent import TableAgent, find_anchors
from sparring_tf.optim.dense_parts import find_ratio, scale_rate, start_again_unless
from sparring_tf.optim.dense_ranks import average_gradients, broadcast
from sparring_tf.optim.fused_updater import FusedUpdater
from sparring_tf.optim.keras_shadow import check_row_by_row
from sparring_tf.optim.loss_scaling import adopt_scaler
from sparring_tf.optim.native_updater import NativeUpdater
from sparring_tf.optim.optimizer_arguments import (
    check_known,
    check_missing,
    copy_optimizer,
    find_agents,
    find_settings,
    is_schedule,
    rate_of,
    reject_setting,
    resolve_rate,
    serialize_rate,
    validate_accumulation_steps,
    validate_dense,
    validate_slices,
)
from sparring_tf.optim.planned_job import create_planned_container
from sparring_tf.optim.row_updates import RowUpdates, Updater
from sparring_tf.saving.anchors import trained_table

__all__ = ["Optimizer"]


@keras.saving.register_keras_serializable("sparring_tf")
class Optimizer(keras.optimizers.Optimizer):
    """Updates the rows of tables and the ordinary variables of a model.

    It can be used like any Keras optimizer::

        model.compile(optimizer=Optimizer(model, keras.optimizers.Adagrad(0.05)), loss=…)
        Optimizer(model, keras.optimizers.Adagrad(0.05), dense=keras.optimizers.Adam(1e-3))
        Optimizer(model, "rowwise_adagrad", learning_rate=0.05, dense=keras.optimizers.Adam())

    or in a custom loop: ``optimizer.apply(tape.gradient(loss, variables), variables)``.

    With a Keras optimizer, a step reads the rows that have gradients and their slots, lets the optimizer
    update them as one variable per table, and stores both. With an update method, each row is changed in
    one pass. Adam, AdamW, Adagrad, SGD and RMSprop are also executed by an update method that computes
    the same rows up to rounding, unless amsgrad, centered or RMSprop's momentum is set. Their subclasses
    and other optimizers take the first route. `routes` returns the route of each table.

    Differences from a dense variable
        - Rows without a gradient in a step do not change: there is no momentum, and Adam is lazy.
          `weight_decay` decays only rows that were looked up.
        - One rank cannot compute norms of gradients of tables: `clipnorm` is rejected, and
          `clipvalue` is supported.

    Args:
        layers: a model, a layer, or several, with tables. All of their tables join one container, and a
            step changes rows of all of them or of none. None uses the tables whose anchors are among the
            variables that `build` receives; Keras calls `build` for a loaded model.
        sparse: optimizer of rows: an elementwise Keras optimizer (SGD, Adagrad, Adam, AdamW, RMSprop,
            Ftrl, Lion and others), or an update method or its name.
        dense: optimizer of ordinary variables. Defaults to a copy of `sparse` that follows the learning
            rate of this optimizer.
        learning_rate: a number, a schedule or a function; only for update methods, which also accept
            `lr`. Defaults to the rate of Keras's optimizer of the same name, or else to 0.01.
        gradient_accumulation_steps: number of calls whose mean gradients make one step, also for `dense`.
        non_finite_gradients: ``raise``: NaN or infinity in a gradient of a row raises an error before
            anything changes; ``skip``: the affected rows are counted and not changed. None uses the
            setting of the container, which is ``raise`` by default.
        tables: table → hyper-parameters that override `hyperparameters`; only for update methods.
        update: how a Keras optimizer updates rows. ``auto`` selects the route as described above;
            ``shadow`` always uses the optimizer's own code; ``method`` always uses an update method,
            which tables in a service require.
        plan: sharding of the tables: a `sparring.contracts.ShardingPlan`, or table → kind or
            `TableSharding`, the same on all ranks. ``auto``: rank 0 computes it from the tables, the
            ranks and their nodes, with sparring-plan if that is installed. With a plan, layers without a
            container join the job that mpiexec started; closing `container` leaves it. The plan is not
            saved with a model. None leaves the tables where their layers put them.
        name: name of the optimizer.
        **hyperparameters: hyper-parameters of the update method.

    Raises:
        InvalidArgumentError: `layers` contain no tables, the tables are in several containers, `sparse`
            does not accept the hyper-parameters, or the rows contain the state of another optimizer.
        UnsupportedError: the state of `sparse` cannot be split into rows, its update of a row depends on
            other rows, or `update` is ``method`` and no update method computes the same rows.
    """

    def __init__(  # noqa: PLR0913 - keyword arguments, as of Keras optimizers
        self,
        layers: Any,
        sparse: Any,
        *,
        dense: Any = None,
        learning_rate: Any = None,
        gradient_accumulation_steps: int | None = None,
        non_finite_gradients: str | None = None,
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        update: str = "auto",
        plan: PlanLike = None,
        name: str = "sparring",
        **hyperparameters: Any,
    ) -> None:
        is_native = isinstance(sparse, keras.optimizers.Optimizer)
        if not is_native and not isinstance(sparse, (str, UpdateMethod)):
            raise InvalidArgumentError(
                "Optimizer takes a Keras optimizer, such as keras.optimizers.Adagrad(0.05), or the "
                f"name of an update method, such as 'rowwise_adagrad'; found {sparse!r}"
            )
        if update not in ("auto", "shadow", "method"):
            raise InvalidArgumentError(
                f"Optimizer: update must be 'auto', 'shadow' or 'method', found {update!r}"
            )
        if update != "auto" and not is_native:
            raise InvalidArgumentError(
                f"Optimizer: update={update!r} is only supported for Keras optimizers, found update "
                f"method {sparse!r}; leave it out"
            )
        if is_native:
            check_row_by_row(sparse)
            named = {"tables": tables, "learning_rate": learning_rate, **hyperparameters}
            for given, value in named.items():
                if value is not None:
                    raise InvalidArgumentError(
                        f"Optimizer: {given} is only supported for update methods; pass hyper-parameters "
                        f"to {type(sparse).__name__}"
                    )
        else:
            learning_rate = resolve_rate(sparse, learning_rate, hyperparameters)
        # Keras accepts a schedule, a function or a number.
        super().__init__(learning_rate=rate_of(sparse) if is_native else learning_rate, name=name)
        self._sparse, self._hyperparameters = sparse, dict(hyperparameters)
        self._by_table = {table: dict(own) for table, own in (tables or {}).items()}
        self._policy, self._update, self._plan = non_finite_gradients, update, plan
        self._num_parts = validate_accumulation_steps(gradient_accumulation_steps)
        self._follows = dense is None and is_native
        self.dense = (
            copy_optimizer(sparse) if self._follows else validate_dense(dense, self._num_parts)
        )
        if self.dense is not None and self._num_parts > 1:
            self.dense.gradient_accumulation_steps = self._num_parts
        self._dense_ratio = 1.0 if self.dense is None else find_ratio(self, self.dense)
        self._rows: RowUpdates | None = None
        self._has_other_scaler = False
        self._settings = find_settings(sparse)
        if layers is not None:
            self._join(find_agents(layers))

    @classmethod
    def from_method(cls, layers: Any, method: str, native: Any, **options: Any) -> Optimizer:
        """Creates an optimizer that updates rows with a method, and ordinary variables with `native`.

        Both use the learning rate of `native`.

        Args:
            layers: see the constructor.
            method: name of an update method.
            native: a Keras optimizer.
            **options: options of the constructor.
        """
        made = cls(
            layers, method, dense=copy_optimizer(native), learning_rate=rate_of(native), **options
        )
        made._follows = True
        return made

    # -- side effects of Keras ------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_settings", ()):
            reject_setting(self, self._sparse, name, value)
        super().__setattr__(name, value)

    @property
    def learning_rate(self) -> Any:
        """Learning rate of rows, and of ordinary variables unless `dense` was given.

        With `dense`, an assigned number changes the rate of `dense` by the same factor; to change only
        one of them, assign ``optimizer.dense.learning_rate`` afterwards.

        Raises:
            InvalidArgumentError: a rate is assigned that `dense` cannot follow.
        """
        return self._get_current_learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if self.dense is not None and not self._follows:
            scale_rate(self.dense, self._learning_rate, value, self._dense_ratio)
        keras.optimizers.Optimizer.learning_rate.fset(self, value)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Called by Keras at the end of `fit`: assigns averages of ordinary variables if `dense` has
        ``use_ema=True``.

        Args:
            var_list: variables of the model. Anchors are skipped.
        """
        if self.dense is not None and self.dense.built:
            ordinary = [each for each in var_list if trained_table(each) is None]
            self.dense.finalize_variable_values(ordinary)

    @property
    def loss_scale_factor(self) -> float:
        """1, because losses are scaled by a `LossScaleOptimizer` around this optimizer."""
        # If it were None, Keras would skip the assignment below, which assigns None.
        return 1.0

    @loss_scale_factor.setter
    def loss_scale_factor(self, value: Any) -> None:
        if value is not None:
            raise UnsupportedError(
                f"Optimizer does not support loss_scale_factor, found {value!r}; wrap it: "
                "sparring_tf.LossScaleOptimizer(optimizer, initial_scale=…)"
            )
        # The constructor of a LossScaleOptimizer sets it, also when model.compile creates one.
        self._has_other_scaler = not adopt_scaler(self)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Not supported, because it would have to exclude rows.

        `var_list` and `var_names` are ignored.

        Raises:
            UnsupportedError: always; call this method of `dense` for ordinary variables.
        """
        raise UnsupportedError(
            "sparring_tf.Optimizer does not support exclude_from_weight_decay; pass a separate optimizer "
            "for ordinary variables, dense=…, and call exclude_from_weight_decay of that optimizer"
        )

    # -- tables and variables ---------------------------------------------------

    @property
    def container(self) -> StepContainer:
        """The container of the tables.

        Raises:
            InvalidArgumentError: the optimizer has no tables yet.
        """
        return self._known_rows().container

    @property
    def routes(self) -> dict[str, str]:
        """Table → the update method that changes its rows; or ``shadow`` and the reason why a Keras
        optimizer updates them with its own code. It may change in each step.

        Raises:
            InvalidArgumentError: the optimizer has no tables yet.
        """
        return self._known_rows().updater.routes

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the optimizer state for the trainable variables of a model.

        On several ranks, ordinary variables get the values of rank 0.

        Args:
            variables: all trainable variables of a model, including the anchors of tables.

        Raises:
            InvalidArgumentError: a table does not belong to this optimizer's layers, no optimizer was
                given for ordinary variables, or this optimizer is wrapped in a `LossScaleOptimizer` that
                does not support tables.
        """
        if self._has_other_scaler:
            raise InvalidArgumentError(
                "sparring_tf.Optimizer is wrapped in a LossScaleOptimizer of a third-party class, which "
                "may not support gradients of tables; derive it from "
                "sparring_tf.LossScaleOptimizer"
            )
        if self.built:
            indices = self._trainable_variables_indices
            check_known(variables, self.container, lambda each: self._var_key(each) in indices)
            return
        if self._rows is None:
            anchors = list(filter(None, map(trained_table, variables)))
            self._join(list({id(each.agent): each.agent for each in anchors}.values()))
        check_known(variables, self.container, lambda _: True)
        ordinary = [each for each in variables if trained_table(each) is None]
        if ordinary and self.dense is None:
            raise InvalidArgumentError(
                f"the model has {len(ordinary)} ordinary variables, such as {ordinary[0].path}, but "
                f"{self._sparse!r} only updates rows of tables; pass an optimizer for them: "
                "dense=keras.optimizers.Adam()"
            )
        if ordinary:
            self.dense.build(ordinary)
            self.container.quiesce()
            broadcast(ordinary, self.container.collective)
        super().build(variables)

    def _join(self, agents: Sequence[TableAgent]) -> None:
        if not agents:
            raise InvalidArgumentError(
                "Optimizer: the given layers have no tables; give a model or layers with an Embedding, "
                "EmbeddingBag or EmbeddingCollection of sparring_tf"
            )
        if self._plan is None:
            container = join_container(agents)
        else:
            sparse = self._sparse
            named = sparse if isinstance(sparse, str) else getattr(sparse, "name", None)
            hyperparameters = self._hyperparameters if isinstance(sparse, str) else None
            container = create_planned_container(agents, self._plan, named, hyperparameters)
        if self._policy is not None:
            container.non_finite_gradients = non_finite_policy(self._policy)
        names = list(dict.fromkeys(name for agent in agents for name in agent.table_names))
        given = collect_open_storages(agents)
        updater: Updater
        sparse = self._sparse
        if isinstance(sparse, keras.optimizers.Optimizer):
            updater = NativeUpdater(container, names, sparse, given, self._update, self._iterations)
        else:
            method = resolve_method(sparse) if isinstance(sparse, str) else sparse
            hyperparameters = dict(self._hyperparameters)
            updater = FusedUpdater(container, names, method, hyperparameters, self._by_table, given)
        # Keras tracks the attribute, so these variables become variables of this optimizer.
        self.kept_for_tables = updater.variables
        self._rows = RowUpdates(container, updater, self._num_parts)

    def _known_rows(self) -> RowUpdates:
        if self._rows is None:
            raise InvalidArgumentError(
                "this Optimizer has no tables yet; create it with layers, or build it with the "
                "variables of a model"
            )
        return self._rows

    # -- one step ---------------------------------------------------------------

    @tf.autograph.experimental.do_not_convert  # type: ignore[misc,unused-ignore]
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Updates rows and ordinary variables.

        Args:
            grads: one gradient per variable, or None. Gradients of anchors are `tf.IndexedSlices`, as
                returned by a tape.
            trainable_variables: the variables. Defaults to the variables that it was built with.

        Raises:
            InvalidArgumentError: a gradient of an anchor is not `tf.IndexedSlices`, the numbers of
                gradients and variables differ, all gradients are None, or a variable is unknown.
            UnsupportedError: it is called in a strategy of `tf.distribute`.
            NonFiniteGradientError: a gradient of a row contains NaN or infinity, and the policy is
                ``raise``. In a graph, TensorFlow raises its own error with the same text.
        """
        reject_strategies("Optimizer.apply")
        if trainable_variables is None:
            if not self.built:
                raise InvalidArgumentError(
                    "apply: pass the variables with the gradients, or call build(variables) first"
                )
            variables = list(self._trainable_variables)
        else:
            variables = list(trainable_variables)
            self.build(variables)
        gradients = list(grads)
        if len(gradients) != len(variables):
            raise InvalidArgumentError(
                f"apply: found {len(gradients)} gradients for {len(variables)} variables; pass one per "
                "variable, or None for a variable without a gradient"
            )
        check_missing(gradients, variables)
        tables, slices, dense = [], [], []
        for gradient, variable in zip(gradients, variables, strict=True):
            trained = trained_table(variable)
            if trained is None:
                dense.append((gradient, variable))
            elif gradient is not None:
                tables.append(trained.name)
                slices.append(validate_slices(gradient, trained.name))
        dense = average_gradients(dense, self.container.collective, self.container.quiesce)
        # Includes layers that are frozen, which may be trained later, and other layers of a table.
        anchors = [] if tf.executing_eagerly() else find_anchors(self.container)
        rate = self._get_current_learning_rate()
        is_parted = self._num_parts > 1 and self.dense is not None and self.dense.built
        dense_calls = self.dense._iterations.value if is_parted else -1
        count = self._known_rows().step(
            tables, slices, anchors, rate, self._iterations.value, dense_calls
        )
        with tf.control_dependencies([] if tf.executing_eagerly() else [count]):
            if is_parted:
                dense = start_again_unless(self.dense, count - 1, dense)
            if any(gradient is not None for gradient, _ in dense):
                if self._follows:
                    # Converted, because Keras would track a variable as part of the other optimizer.
                    self.dense.learning_rate = tf.convert_to_tensor(rate)
                self.dense.apply(*map(list, zip(*dense, strict=True)))
            is_taken = count == self._num_parts
            self._iterations.assign_add(tf.cast(is_taken, self._iterations.dtype))

    def _get_current_learning_rate(self) -> Any:
        if self._num_parts == 1 or not is_schedule(self._learning_rate):
            return super()._get_current_learning_rate()
        # As in Keras, a schedule counts calls, and a step has the rate of its last call.
        return self._learning_rate((self._iterations + 1) * self._num_parts - 1)

    @property
    def variables(self) -> list[Any]:
        """Number of steps, learning rate, and state of ordinary variables and of tables as a whole. The
        slots of rows are stored in the rows."""
        dense = [] if self.dense is None else self.dense.variables
        return [*self._variables, *dense]

    # -- saving -------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration without tables, because a loaded model connects its tables itself.

        Raises:
            InvalidArgumentError: `sparse` is an update method that was passed as an object.
        """
        if isinstance(self._sparse, UpdateMethod):
            raise InvalidArgumentError(
                f"get_config: update method {self._sparse.name!r} was passed as an object, which a saved "
                "model cannot create again; pass its name"
            )
        is_native = isinstance(self._sparse, keras.optimizers.Optimizer)
        serialize = keras.optimizers.serialize
        rate = serialize_rate(self._learning_rate)
        is_copied = is_native and self._follows
        config = {
            "name": self.name,
            "sparse": serialize(self._sparse) if is_native else self._sparse,
            "dense": None if is_copied or self.dense is None else serialize(self.dense),
            "gradient_accumulation_steps": None if self._num_parts == 1 else self._num_parts,
            "non_finite_gradients": self._policy,
        }
        if is_native:
            # The rate may have been assigned since.
            config["sparse"]["config"]["learning_rate"] = rate
        if self._update != "auto":
            config["update"] = self._update
        if not is_native:
            config |= {"learning_rate": rate, "tables": dict(self._by_table) or None}
            config |= dict(self._hyperparameters)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Optimizer:  # noqa: ARG003 - Keras passes it
        """Creates an optimizer without tables from the result of `get_config`.

        Args:
            config: result of `get_config`.
            custom_objects: ignored; Keras's loader passes it.
        """
        config = dict(config)
        for key in ("sparse", "dense"):
            if isinstance(config[key], dict):
                config[key] = keras.optimizers.deserialize(config[key])
        rate = config.get("learning_rate")
        if isinstance(rate, dict):
            config["learning_rate"] = keras.saving.deserialize_keras_object(rate)
        if rate is not None:
            # Ignored by releases that stored it.
            config.pop("lr", None)
        return cls(None, config.pop("sparse"), **config)
