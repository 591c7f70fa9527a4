"""Keras optimizers for the rows of tables."""
