"""Generates Kubernetes resources from a plan or a serving snapshot."""
