"""Facts about a run as texts: environment, names of metrics, sizes."""

from __future__ import annotations

from sparring_train.report.run_data import RunData

__all__ = ["format_bytes", "environment", "format_metric_name"]


def environment(data: RunData) -> dict[str, str]:
    """Returns name → fact, for facts that are known."""
    host, snapshot = data.host, data.snapshot
    found = {"started (UTC)": data.started.replace("T", " ").removesuffix("+00:00")}
    found["ranks"] = f"{data.world_size:,}"
    found["threads per rank"] = "" if data.threads is None else str(data.threads)
    if data.peak_memory_bytes:
        most = "" if data.world_size == 1 else ", maximum over ranks"
        found["peak memory of the process"] = format_bytes(data.peak_memory_bytes) + most
    if host is not None:
        cores = "1 core" if host.usable_cores == 1 else f"{host.usable_cores:,} cores"
        found["host"] = host.name + ("" if data.world_size == 1 else ", of the first rank")
        found["processor"] = f"{host.processor}, {cores}"
        found["memory"] = format_bytes(host.memory_bytes) if host.memory_bytes else ""
        found["GPUs"] = ", ".join(host.gpus)
        found["system"] = host.system
    if snapshot is not None:
        found["snapshot"] = f"{snapshot.url}, after step {snapshot.step:,}"
        found["hash of its manifest"] = snapshot.manifest_hash
    found |= data.backends | data.versions
    return {name: fact for name, fact in found.items() if fact}


def format_bytes(count: int) -> str:
    """Formats a size, for example ``1.5 GiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count:,} B" if units[0] == "B" else f"{value:,.1f} {units[0]}"


def format_metric_name(name: str) -> str:
    """Returns the usual spelling of a metric's name."""
    is_abbreviation = name.partition("@")[0] in ("auc", "rmse", "ndcg", "mrr")
    return name.upper() if is_abbreviation else name.replace("_", " ")
