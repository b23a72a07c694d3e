"""Run the scheduler's decisions over a modelled cluster in virtual time (paper sections 6-9)."""
