"""The engine: tables, lookups, steps and saves of one rank."""
