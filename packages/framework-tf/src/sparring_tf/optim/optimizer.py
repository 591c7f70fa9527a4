"""`Optimizer`: Keras's own optimizers over the rows of tables."""

from __future__ import annotations

import warnings
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
from sparring_tf.lookup.table_agent import TableAgent
from sparring_tf.optim.dense_ranks import average_gradients, broadcast
from sparring_tf.optim.fused_updater import FusedUpdater
from sparring_tf.optim.keras_shadow import check_row_by_row
from sparring_tf.optim.loss_scaling import adopt_scaler
from sparring_tf.optim.native_updater import NativeUpdater
from sparring_tf.optim.planned_job import create_planned_container
from sparring_tf.optim.row_updates import RowUpdates, Updater
from sparring_tf.saving.anchors import trained_table

__all__ = ["Optimizer"]


@keras.saving.register_keras_serializable("sparring_tf")
class Optimizer(keras.optimizers.Optimizer):
    """Updates rows of tables, and with them a model's ordinary variables.

    Use it as any optimizer of Keras::

        model.compile(optimizer=Optimizer(model, keras.optimizers.Adagrad(0.05)), loss=…)
        Optimizer(model, keras.optimizers.Adagrad(0.05), dense=keras.optimizers.Adam(1e-3))
        Optimizer(model, "rowwise_adagrad", learning_rate=0.05, dense=keras.optimizers.Adam())

    or in a loop of your own: ``optimizer.apply(tape.gradient(loss, variables), variables)``.

    With an optimizer of Keras, a step gathers the rows that got gradients, and their slots, lets the
    optimizer update them as one variable per table, and stores both. With the name of an update
    method each row is changed in one visit. So it is with Adam, AdamW, Adagrad, SGD and RMSprop, unless
    amsgrad, centered or RMSprop's momentum is asked for: an update method is known that gives the same
    rows but for rounding. Subclasses and all others take the shadow. `routes` says which it is.

    What differs from a dense variable
        - Rows without a gradient in a step do not move: no momentum, and Adam is lazy.
          `weight_decay` decays the rows that were looked up.
        - Norms of gradients of tables are not known on one rank: `clipnorm` is refused, and
          `clipvalue` works.

    Args:
        layers: a model, a layer, or several, that hold tables. All of their tables join one
            container, and a step changes rows of all of them or of none. None: those whose anchors
            are among the variables that it is built with, as Keras does for a loaded model.
        sparse: what updates rows: an optimizer of Keras that works element by element (SGD, Adagrad,
            Adam, AdamW, RMSprop, Ftrl, Lion and others), or an update method or its name.
        dense: what updates ordinary variables. None: a copy of `sparse`, whose learning rate
            follows that of this optimizer.
        learning_rate: for update methods: a number or a schedule.
        gradient_accumulation_steps: so many calls make one step, which takes the mean of their
            gradients; for `dense` as well.
        non_finite_gradients: ``raise``: a NaN or infinite gradient of a row raises before anything
            changes; ``skip``: the rows concerned stay as they are and are counted. None leaves it
            to the container, which raises.
        tables: for update methods: table → hyper-parameters of its own.
        update: ``auto``; ``shadow``: an optimizer of Keras updates rows by its own code always;
            ``method``: by the update method that gives the same rows always, as a service needs.
        plan: how tables are sharded: a `sparring.contracts.ShardingPlan`, or table → kind or
            `TableSharding`; the same on all ranks. ``auto``: rank 0 makes it from the tables, the ranks
            and their nodes, by sparring-plan where that is installed. With a plan, layers that were given
            no container join the job that mpiexec started; `container` leaves it, by its ``close``. It is
            not saved with a model. None: tables are where their layers say.
        name: of the optimizer.
        **hyperparameters: for update methods.

    Raises:
        InvalidArgumentError: no tables in `layers`; tables that live in several containers;
            hyper-parameters that do not go with `sparse`; rows with another optimizer's state.
        UnsupportedError: `sparse` keeps a state that cannot be cut into rows, or moves a row
            depending on others; with ``update="method"`` no update method gives the same rows.
    """

    def __init__(  # noqa: PLR0913 - optimizers of Keras are made by keywords
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
                "Optimizer takes an optimizer of Keras, as keras.optimizers.Adagrad(0.05), or the "
                f"name of an update method, as 'rowwise_adagrad'; found {sparse!r}"
            )
        if update not in ("auto", "shadow", "method"):
            raise InvalidArgumentError(
                f"update: found {update!r}; give 'auto', 'shadow' or 'method'"
            )
        if update != "auto" and not is_native:
            raise InvalidArgumentError(
                f"update={update!r} is for optimizers of Keras; update method {sparse!r} changes rows "
                "where they are"
            )
        if is_native:
            check_row_by_row(sparse)
            named = {"tables": tables, "learning_rate": learning_rate, **hyperparameters}
            for given, value in named.items():
                if value is not None:
                    raise InvalidArgumentError(
                        f"Optimizer: {given} comes with update methods; give the hyper-parameters of "
                        f"{type(sparse).__name__} to it"
                    )
        elif learning_rate is None:
            learning_rate = 0.01
        # A schedule or a number, as Keras takes it.
        super().__init__(learning_rate=_rate_of(sparse) if is_native else learning_rate, name=name)
        self._sparse, self._hyperparameters = sparse, dict(hyperparameters)
        self._by_table = {table: dict(own) for table, own in (tables or {}).items()}
        self._policy, self._update, self._plan = non_finite_gradients, update, plan
        self._num_parts = _validate_accumulation_steps(gradient_accumulation_steps)
        self._follows = dense is None and is_native
        self.dense = _copy(sparse) if self._follows else _validate_dense(dense)
        if self.dense is not None and self._num_parts > 1:
            self.dense.gradient_accumulation_steps = self._num_parts
        self._rows: RowUpdates | None = None
        self._has_other_scaler = False
        if layers is not None:
            self._join(_agents_of(layers))

    @classmethod
    def from_method(cls, layers: Any, method: str, native: Any, **options: Any) -> Optimizer:
        """One that updates rows by a method, and ordinary variables as `native` does.

        Its learning rate is that of both.

        Args:
            layers: as of the constructor.
            method: name of an update method.
            native: an optimizer of Keras.
            **options: of the constructor.
        """
        made = cls(layers, method, dense=_copy(native), learning_rate=_rate_of(native), **options)
        made._follows = True
        return made

    # -- what Keras would do without us knowing ------------------------------------

    @property
    def loss_scale_factor(self) -> float:
        """1: what scales losses is a `LossScaleOptimizer` around this."""
        # Were it None, Keras would leave out the assignment below, of None.
        return 1.0

    @loss_scale_factor.setter
    def loss_scale_factor(self, _: Any) -> None:
        # A LossScaleOptimizer sets it while it is made, by the hand of model.compile too.
        self._has_other_scaler = not adopt_scaler(self)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Nothing that an `Optimizer` could pass on.

        Raises:
            UnsupportedError: always; `dense` excludes ordinary variables.
        """
        raise UnsupportedError(
            "sparring_tf.Optimizer cannot exclude variables from weight decay; give ordinary variables "
            "an optimizer of their own, dense=…, and exclude them there"
        )

    # -- what is trained --------------------------------------------------------

    @property
    def container(self) -> StepContainer:
        """Where the tables live.

        Raises:
            InvalidArgumentError: it knows no tables yet.
        """
        return self._known_rows().container

    @property
    def routes(self) -> dict[str, str]:
        """Table → the update method that changes its rows; or ``shadow``, and why an optimizer of Keras
        updates them by its own code. Each step may change it.

        Raises:
            InvalidArgumentError: it knows no tables yet.
        """
        return self._known_rows().updater.routes

    def build(self, variables: Sequence[Any]) -> None:
        """Makes what is kept for `variables`, all of a model's trainable ones.

        On several ranks, ordinary variables get the values of rank 0.

        Raises:
            InvalidArgumentError: a table is not of this optimizer's layers; nothing updates ordinary
                variables; another `LossScaleOptimizer` than Keras's or ours was put around this.
        """
        if self._has_other_scaler:
            raise InvalidArgumentError(
                "a LossScaleOptimizer of another class than Keras's is around sparring_tf.Optimizer, and "
                "may not be able to look into gradients of tables; derive it from "
                "sparring_tf.LossScaleOptimizer"
            )
        if self.built:
            return
        anchors = list(filter(None, map(trained_table, variables)))
        if self._rows is None:
            self._join(list({id(each.agent): each.agent for each in anchors}.values()))
        known = self.container.tables
        for trained in anchors:
            if trained.agent.container is not self.container or trained.name not in known:
                raise InvalidArgumentError(
                    f"table {trained.name!r} is trained, but this Optimizer was made without its "
                    "layer; give it all layers that hold tables",
                    table=trained.name,
                )
        ordinary = [each for each in variables if trained_table(each) is None]
        if ordinary and self.dense is None:
            raise InvalidArgumentError(
                f"the model has {len(ordinary)} ordinary variables, as {ordinary[0].path}, and "
                f"{self._sparse!r} updates rows of tables only; give an optimizer for them: "
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
                "none of the layers given holds a table; give a model or layers with an Embedding, "
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
            updater = NativeUpdater(container, names, sparse, given, self._update)
        else:
            method = resolve_method(sparse) if isinstance(sparse, str) else sparse
            hyperparameters = dict(self._hyperparameters)
            updater = FusedUpdater(container, names, method, hyperparameters, self._by_table, given)
        # As an attribute, Keras takes what is kept for whole tables for variables of this.
        self.kept_for_tables = updater.variables
        self._rows = RowUpdates(container, updater, self._num_parts)
        for agent in agents:
            agent.has_optimizer = True

    def _known_rows(self) -> RowUpdates:
        if self._rows is None:
            raise InvalidArgumentError(
                "this Optimizer knows no tables yet; give it layers, or build it with the "
                "variables of a model"
            )
        return self._rows

    # -- the life of a step -----------------------------------------------------

    @tf.autograph.experimental.do_not_convert  # type: ignore[misc,unused-ignore]
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Updates rows and ordinary variables.

        Args:
            grads: one for each variable, None where there is none; those of anchors are
                `tf.IndexedSlices`, as a tape gives them.
            trainable_variables: the variables; None: those that it was built with.

        Raises:
            InvalidArgumentError: a gradient of an anchor is no `tf.IndexedSlices`; there are more or
                fewer gradients than variables, or all of them are None.
            NonFiniteGradientError: a gradient of a row holds NaN or infinity, and the policy is to
                raise. In a graph, TensorFlow raises its own error with this one's text.
        """
        if trainable_variables is None:
            if not self.built:
                raise InvalidArgumentError(
                    "apply: give the variables with the gradients, or call build(variables) first"
                )
            variables = list(self._trainable_variables)
        else:
            variables = list(trainable_variables)
            self.build(variables)
        gradients = list(grads)
        if len(gradients) != len(variables):
            raise InvalidArgumentError(
                f"apply: found {len(gradients)} gradients for {len(variables)} variables; give one for "
                "each, None where there is none"
            )
        _check_missing(gradients, variables)
        tables, slices, dense = [], [], []
        for gradient, variable in zip(gradients, variables, strict=True):
            trained = trained_table(variable)
            if trained is None:
                dense.append((gradient, variable))
            elif gradient is not None:
                tables.append(trained.name)
                slices.append(_validate_slices(gradient, trained.name))
        dense = average_gradients(dense, self.container.collective, self.container.quiesce)
        anchors = [each for each in self._trainable_variables if trained_table(each) is not None]
        rate = self._get_current_learning_rate()
        is_taken = self._known_rows().step(tables, slices, anchors, rate, self._iterations.value)
        with tf.control_dependencies([] if tf.executing_eagerly() else [is_taken]):
            if any(gradient is not None for gradient, _ in dense):
                if self._follows:
                    # Its value: a variable would be taken for one of the other optimizer's own.
                    self.dense.learning_rate = tf.convert_to_tensor(rate)
                self.dense.apply(*map(list, zip(*dense, strict=True)))
            self._iterations.assign_add(tf.cast(is_taken, self._iterations.dtype))

    @property
    def variables(self) -> list[Any]:
        """Steps taken, the learning rate, and what is kept for ordinary variables and for tables as
        a whole. Slots of rows lie with the rows."""
        dense = [] if self.dense is None else self.dense.variables
        return [*self._variables, *dense]

    # -- what can be saved --------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Configuration that makes the optimizer again; a loaded model finds its tables by itself.

        Raises:
            InvalidArgumentError: `sparse` is an update method that was given as an object.
        """
        if isinstance(self._sparse, UpdateMethod):
            raise InvalidArgumentError(
                f"update method {self._sparse.name!r} was given as an object, and a saved model "
                "could not make it again; give its name"
            )
        is_native = isinstance(self._sparse, keras.optimizers.Optimizer)
        serialize = keras.optimizers.serialize
        rate = self._learning_rate
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = keras.optimizers.schedules.serialize(rate)
        else:
            rate = float(keras.ops.convert_to_numpy(rate))
        is_copied = is_native and self._follows
        config = {
            "name": self.name,
            "sparse": serialize(self._sparse) if is_native else self._sparse,
            "dense": None if is_copied or self.dense is None else serialize(self.dense),
            "gradient_accumulation_steps": None if self._num_parts == 1 else self._num_parts,
            "non_finite_gradients": self._policy,
        }
        if self._update != "auto":
            config["update"] = self._update
        if not is_native:
            config |= {"learning_rate": rate, "tables": dict(self._by_table) or None}
            config |= dict(self._hyperparameters)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Optimizer:  # noqa: ARG003 - Keras gives it
        """The optimizer that `get_config` described, without its tables."""
        config = dict(config)
        for key in ("sparse", "dense"):
            if isinstance(config[key], dict):
                config[key] = keras.optimizers.deserialize(config[key])
        rate = config.get("learning_rate")
        if isinstance(rate, dict):
            config["learning_rate"] = keras.optimizers.schedules.deserialize(rate)
        return cls(None, config.pop("sparse"), **config)


def _rate_of(native: Any) -> Any:
    """The number or schedule that an optimizer was made with."""
    rate = native._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return rate
    return float(keras.ops.convert_to_numpy(rate))


def _copy(native: Any) -> Any:
    config = {**native.get_config(), "learning_rate": float(native.learning_rate)}
    return type(native).from_config(config)


def _validate_dense(given: Any) -> Any:
    if given is None or isinstance(given, keras.optimizers.Optimizer):
        return given
    raise InvalidArgumentError(
        "dense must be an optimizer of Keras, as keras.optimizers.Adam(1e-3), or None; found "
        f"{given!r}"
    )


def _validate_accumulation_steps(given: int | None) -> int:
    if given is None:
        return 1
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidArgumentError(
            f"gradient_accumulation_steps must be a whole number from 1, found {given!r}"
        )
    return given


def _check_missing(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Rejects a step without any gradient, and warns of variables without one, as Keras does."""
    given = [*zip(gradients, variables, strict=True)]
    missing = [variable for gradient, variable in given if gradient is None]
    if len(missing) == len(given):
        raise InvalidArgumentError(
            "apply: no variable has a gradient, so the step would change nothing; compute the loss from "
            "the model's outputs inside of the tape, and give compile a loss"
        )
    if any(gradient is not None and trained_table(each) is None for gradient, each in given):
        # The optimizer of ordinary variables warns of those.
        missing = [each for each in missing if trained_table(each) is not None]
    if missing:
        names = ", ".join(each.path for each in missing)
        warnings.warn(
            f"apply: found no gradients for {names}, which stay as they are; if they should be trained, "
            "call their layers inside of the tape, and compute the loss from the outputs",
            stacklevel=3,
        )


def _validate_slices(gradient: Any, table: str) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return gradient
    raise InvalidArgumentError(
        f"the gradient of table {table!r} must be tf.IndexedSlices, as a tape gives it, found "
        f"{type(gradient).__name__}; do not make a dense tensor of it, leave the variable that stands "
        "for the table out of penalties, and add gradients of several batches with "
        "gradient_accumulation_steps=…",
        table=table,
    )


def _agents_of(layers: Any) -> list[TableAgent]:
    roots = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    agents: dict[int, TableAgent] = {}
    for root in roots:
        if not isinstance(root, keras.layers.Layer):
            raise InvalidArgumentError(
                f"Optimizer takes models and layers that hold tables, found {type(root).__name__}"
            )
        for weight in root.weights:
            trained = trained_table(weight)
            if trained is not None:
                agents.setdefault(id(trained.agent), trained.agent)
    return list(agents.values())
