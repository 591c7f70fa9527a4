"""Joins of impressions with the actions that follow them."""
