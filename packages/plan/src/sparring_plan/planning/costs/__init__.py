"""Costs of the options of each table."""
