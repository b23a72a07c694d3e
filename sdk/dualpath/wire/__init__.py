"""Model <-> stubs, one function each way; the only place that knows both."""
