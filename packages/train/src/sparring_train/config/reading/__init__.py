"""Reads a configuration: YAML, checks of plugins, stored configurations; and writes YAML."""
