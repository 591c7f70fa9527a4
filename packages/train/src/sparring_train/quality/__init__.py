"""Metrics of predictions and of rankings."""
