"""The thin shell around policy and lifecycle: take a snapshot, decide, write, and only then tell anyone."""
