"""The scheduler's edges: gRPC for clients, agents and operators, HTTP for probes; errors become status codes here."""
