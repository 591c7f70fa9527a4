"""Rows in checkpoints, saved models and files of Keras."""
