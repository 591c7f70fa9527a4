"""A lookup service on a port: gRPC, its processes, its refreshes, its end."""
