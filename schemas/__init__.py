"""The published contract: what crosses the wire and shared memory, for readers that are not timesyncd."""
