"""The report of a plan: one static HTML page without scripts and external resources."""
