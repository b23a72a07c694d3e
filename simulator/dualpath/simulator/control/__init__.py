"""Who decides in a simulated run: the policy functions called directly, or the real service objects."""
