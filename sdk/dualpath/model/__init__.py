"""The words every part of DualPath shares: ids, turns, loads, plans, layouts, errors. Imports nothing of ours."""
