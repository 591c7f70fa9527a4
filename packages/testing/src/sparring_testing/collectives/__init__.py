"""The conformance kits of collectives and sharding kinds."""
