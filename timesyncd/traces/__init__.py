"""Profiler traces of several nodes on one axis. Pure: text in, events out; docs/traces.md describes the method."""
