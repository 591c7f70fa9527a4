"""The `training` section: length of the training, and its evaluation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sparring.contracts import LocalPath
from sparring_train.config.names import NamedClassOrName
from sparring_train.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section

__all__ = ["TrackerConfig", "TrainingConfig"]


class TrackerConfig(Section):
    """A tracker that records the configuration, metrics and report of the run."""

    kind: str = Field(
        min_length=1,
        description="`tensorboard`, `mlflow`, `wandb`, or one that a plugin registers.",
    )
    url: LocalPath | None = Field(
        None,
        min_length=1,
        description="TensorBoard: folder of event files; null: `runs`. MLflow: tracking URI; null: its "
        "`MLFLOW_TRACKING_URI`. W&B: address of the server; null: its own. Relative paths start at the "
        "folder of the configuration file.",
    )
    project: str = Field(
        "sparring",
        min_length=1,
        description="Folder in `url` for TensorBoard, experiment of MLflow, project of W&B.",
    )
    name: str | None = Field(
        None, min_length=1, description="Name of the run; null: chosen by the tracker."
    )


def _kind_alone(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


TrackerOrKind = Annotated[TrackerConfig, BeforeValidator(_kind_alone)]
"""A tracker without further settings may be written as its kind."""


class TrainingConfig(Section):
    """Training ends after `epochs` or `steps`, depending on which comes first."""

    epochs: PositiveInt = Field(1, description="Number of passes over the training data.")
    steps: PositiveInt | None = Field(
        None, description="Maximum number of steps; null sets no limit."
    )
    loss: NamedClassOrName | None = Field(
        None,
        description="Loss of models that predict labels, instead of their own: a class of the framework, "
        "`torch.nn:HuberLoss` or `{name: torch.nn:HuberLoss, delta: 0.5}`. It is called with the outputs "
        "and the labels, `(b,)` each, and returns one loss per example. Null: the model's loss.",
    )
    metrics: Annotated[tuple[NamedClassOrName, ...], Field(strict=False, max_length=64)] = Field(
        (),
        description="Further metrics of models that predict labels: classes with the methods "
        "`update(predictions, labels)` and `metrics()`, which returns name → value. The attribute "
        "`higher_is_better = False` means that lower values are better, for `watch`.",
    )
    micro_batches: PositiveInt = Field(
        1, description="Number of parts of a batch whose gradients are added up to one step."
    )
    pipeline: bool = Field(
        False,
        description="Prefetch the lookup of each batch during the previous step, and read again the rows "
        "that the step changed; the results are the same. Faster if lookups wait for other ranks or "
        "a slow storage, otherwise slower. Requires `framework: torch`.",
    )
    evaluation_interval_steps: PositiveInt | None = Field(
        None,
        description="Number of steps between evaluations, which use the validation rows if there are "
        "any, otherwise the test rows. Null: the validation rows are evaluated at the end of each "
        "epoch. Both are evaluated at the end of training.",
    )
    watch: str | None = Field(
        None,
        min_length=1,
        description="Metric on the validation rows that determines the best step. Null: `auc`, `rmse` or "
        "`recall@10`, depending on the model.",
    )
    patience: PositiveInt | None = Field(
        None,
        description="Stop after this many consecutive evaluations without an improvement of `watch`; "
        "null disables early stopping. Requires validation rows.",
    )
    min_improvement: NonNegativeFloat = Field(
        0.0, description="Minimum change of `watch` that counts as an improvement."
    )
    keep_best: bool = Field(
        True,
        description="With validation rows: save a snapshot whenever `watch` improves, and return to the "
        "best one at the end, which is then tested, reported and saved as the newest snapshot. False "
        "uses the last step.",
    )
    log_interval_seconds: PositiveFloat = Field(
        5.0, description="Time between two progress lines if there is no terminal."
    )
    non_finite_gradients: Literal["raise", "skip"] = Field(
        "raise",
        description="Handling of NaN or infinite gradients: `raise` ends training with an error before "
        "a row changes; `skip` leaves the affected rows unchanged and counts them.",
    )
    trackers: Annotated[tuple[TrackerOrKind, ...], Field(strict=False, max_length=16)] = Field(
        (),
        description="Trackers that record the run, on the first rank: `[tensorboard, {kind: mlflow, url: "
        "http://10.0.0.5:5000, project: clicks}]`. Each requires an extra: `pip install "
        "'sparring-train[mlflow]'`. The loss is sent every `log_interval_seconds`. If a tracker fails "
        "later, training continues.",
    )
