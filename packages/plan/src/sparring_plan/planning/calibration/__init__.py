"""Measures what the costs of a plan depend on, on this machine."""
