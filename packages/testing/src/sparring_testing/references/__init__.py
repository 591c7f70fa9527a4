"""Sample data, and reference implementations with which results are compared."""
