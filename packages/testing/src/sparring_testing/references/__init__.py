"""Samples, and references that results are compared with."""
