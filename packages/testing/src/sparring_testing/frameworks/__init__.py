"""The conformance kits of framework adapters, models and data sets."""
