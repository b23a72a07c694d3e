"""Backends that move KV between nodes: one-sided writes into and reads from registered regions."""
