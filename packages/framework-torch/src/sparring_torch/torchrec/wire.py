"""Precision of messages with TorchRec's names: `QCommsConfig`, converted to `ExchangeOptions`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch

from sparring import ExchangeOptions
from sparring.errors import UnsupportedError

__all__ = ["CommType", "QCommsConfig", "find_exchange_dtypes", "get_qcomm_codecs_registry"]


class CommType(Enum):
    """Precision of numbers in messages."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    MX4 = "mx4"


_WIRE_DTYPES = {
    CommType.FP32: "exact",
    CommType.FP16: "float16",
    CommType.BF16: "bfloat16",
    CommType.INT8: "int8",
}


@dataclass
class QCommsConfig:
    """Precision of rows and gradients in messages between ranks.

    Args:
        forward_precision: precision of rows.
        backward_precision: precision of gradients.

    The other fields exist for compatibility with TorchRec and are not supported.

    Raises:
        UnsupportedError: another field is set, or a precision is not supported.
    """

    forward_precision: CommType = CommType.FP32
    backward_precision: CommType = CommType.FP32
    forward_loss_scale: float | None = None
    backward_loss_scale: float | None = None
    fp8_quantize_dim: int | None = None
    fp8_quantize_dim_bwd: int | None = None
    fp8_bwd_uses_143: bool | None = False
    mx4_quantize_dim: int | None = None
    mx4_quantize_dim_bwd: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self)[2:]:
            if getattr(self, each.name) not in (None, False):
                raise UnsupportedError(
                    f"QCommsConfig: leave out {each.name}: rows and gradients are sent as float32, "
                    "float16, bfloat16 or int8, and int8 has a scale per row"
                )
        for name in ("forward_precision", "backward_precision"):
            if getattr(self, name) not in _WIRE_DTYPES:
                raise UnsupportedError(
                    f"QCommsConfig: found {name} {getattr(self, name)}, which is not supported; use "
                    "CommType.FP32, FP16, BF16 or INT8"
                )


def get_qcomm_codecs_registry(
    qcomms_config: QCommsConfig, device: torch.device | None = None
) -> ExchangeOptions:
    """Returns options for `qcomm_codecs_registry` of sharders.

    Args:
        qcomms_config: precision of rows and gradients.
        device: must be None, because numbers are converted on the device where they are.

    Raises:
        UnsupportedError: `device` is given.
    """
    if device is not None:
        raise UnsupportedError(
            f"get_qcomm_codecs_registry: found device {device}; leave it out, because numbers are "
            "converted on the device where they are"
        )
    return ExchangeOptions(
        row_wire_dtype=_WIRE_DTYPES[qcomms_config.forward_precision],
        gradient_wire_dtype=_WIRE_DTYPES[qcomms_config.backward_precision],
    )


def find_exchange_dtypes(registries: list[Any]) -> ExchangeOptions | None:
    """Returns the common exchange options of the sharders' registries, or None.

    Raises:
        UnsupportedError: they differ.
    """
    given = [each for each in registries if each is not None]
    if any(each != given[0] for each in given):
        raise UnsupportedError(
            f"sharders: found {len(given)} registries with different precisions, but all tables of a "
            "model share one; give all sharders the same qcomm_codecs_registry"
        )
    return given[0] if given else None
