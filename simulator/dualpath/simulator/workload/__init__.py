"""Sessions to serve: the paper's fitted generator, real traces, arrival processes."""
