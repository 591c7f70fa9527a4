"""Recommendations from a saved model: items, their columns, and their names."""
