"""The laws of a scheduling policy, and a check of any policy against them with shrunk counterexamples."""
