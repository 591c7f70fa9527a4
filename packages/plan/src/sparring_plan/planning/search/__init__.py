"""Searches for the best options and ranks."""
