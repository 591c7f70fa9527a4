"""Optimizers of torch over the rows of tables."""
