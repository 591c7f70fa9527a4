"""The conformance kit of storages."""
