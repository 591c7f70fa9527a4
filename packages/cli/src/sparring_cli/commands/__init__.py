"""Commands that work on any installation: plugins, machine, storages and snapshots."""
