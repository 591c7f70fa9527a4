"""The search for the best options and ranks."""
