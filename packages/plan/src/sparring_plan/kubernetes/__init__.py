"""Resources of Kubernetes from a plan."""
