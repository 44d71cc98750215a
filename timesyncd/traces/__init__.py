"""Profilers' traces of several nodes on one axis. Pure: text in, events out; docs/traces.md says what is done."""
