"""Audits a recorded job: the cost of synchronization, its causes, and the gain of each remedy."""
