"""Runs as data: what to simulate is a value that can be stored, compared and run by another process."""
