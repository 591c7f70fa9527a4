"""Protobuf messages, encoded and decoded without a dependency on protobuf."""
