"""Configuration: YAML files and overrides, read into frozen models."""
