"""The report of a plan: one static HTML page that loads nothing and runs nothing."""
