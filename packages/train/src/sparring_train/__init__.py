"""Trains what a YAML file describes: `sparring train` and `sparring config`."""
