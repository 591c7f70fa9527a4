"""Reads text files: CSV, JSON Lines, and lines of users and items."""
