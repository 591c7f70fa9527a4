"""Commands that work on any installation: on plugins, the machine, storages and snapshots."""
