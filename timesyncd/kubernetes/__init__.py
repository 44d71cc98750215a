"""Keeps a label and a taint on Kubernetes' nodes that state how far each node's clock may be off, by a hub's API."""
