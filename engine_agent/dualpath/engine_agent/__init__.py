"""The agent of one node: runs the plans of the scheduler on its engines, moves KV, reports load (paper §4-§6)."""
