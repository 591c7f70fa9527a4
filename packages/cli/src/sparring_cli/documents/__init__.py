"""YAML documents that are validated by a model and keep the location of each key."""
