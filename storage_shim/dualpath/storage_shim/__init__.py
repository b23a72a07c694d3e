"""KV blocks in storage: written once and atomically, served whole and right or not at all (paper §A.5)."""
