"""Measures the costs of plans on this machine."""
