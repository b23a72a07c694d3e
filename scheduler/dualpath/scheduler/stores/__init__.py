"""The stores of a cell: in memory for simulator and tests, Redis for the service; both behave alike."""
