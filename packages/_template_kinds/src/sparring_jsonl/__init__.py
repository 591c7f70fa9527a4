"""sparring-jsonl: data from lines of JSON, and a factorisation machine, for `sparring train`."""

from sparring_jsonl.sections import FactorizationMachineModel, JsonLinesData

__all__ = ["FactorizationMachineModel", "JsonLinesData"]
