"""Readings of the host and its accelerators. What cannot be read is None, never 0."""
