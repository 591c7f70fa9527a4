"""Contracts of the operations of a device."""
