"""sparring-jsonl: a data set of JSON lines and a factorization machine for `sparring train`."""

from sparring_jsonl.sections import FactorizationMachineModel, JsonLinesData

__all__ = ["FactorizationMachineModel", "JsonLinesData"]
