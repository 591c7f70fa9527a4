"""Tests of storages through the C ABI."""
