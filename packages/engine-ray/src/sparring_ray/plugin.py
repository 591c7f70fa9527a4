"""The sparring plugin of this package. Importing it does not import Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import hookimpl

if TYPE_CHECKING:
    from sparring_ray.section import RayData
    from sparring_train import DataDescriptor, Dataset, OpenRequest


@hookimpl(optionalhook=True)
def sparring_register_data() -> Sequence[DataDescriptor]:
    from sparring_ray.section import RayData
    from sparring_train import DataDescriptor

    return [
        DataDescriptor(
            name="ray",
            api_version=(1, 0),
            summary="Datasets of Ray that `sparring_ray.train` received.",
            section=RayData,
            open=_open,
        )
    ]


def _open(section: RayData, request: OpenRequest) -> Dataset:
    from sparring_ray.dataset import RayDataset

    return RayDataset(section, request)
