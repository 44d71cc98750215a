"""Profiler traces of several nodes on one axis, and ranks' traces of several formats. Pure; docs/traces.md, docs/audit.md."""
