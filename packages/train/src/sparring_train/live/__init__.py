"""Evaluation of a stream while a run trains it."""
