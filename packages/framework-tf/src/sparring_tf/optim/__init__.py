"""Optimizers of Keras over the rows of tables."""
