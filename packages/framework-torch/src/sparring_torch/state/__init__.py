"""Rows in state dicts, copies, pickles and saved state."""
