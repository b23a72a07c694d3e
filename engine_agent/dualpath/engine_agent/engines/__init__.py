"""Compute engines: a small real transformer, and a cost model that moves real KV bytes."""
