"""YAML documents: read with the place of each key, checked by a model."""
