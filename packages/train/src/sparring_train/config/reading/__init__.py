"""Reads a configuration: YAML and overrides, checks of plugins, stored configurations, and the way back to YAML."""
