"""gRPC servers of a lookup service."""
