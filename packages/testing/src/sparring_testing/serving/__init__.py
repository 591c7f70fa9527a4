"""Servers of tables, for tests of sparring-serve and of its neighbors."""
