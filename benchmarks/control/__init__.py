"""The control plane under load: the real scheduler process, its Redis and real sockets against emulated leaders.

`python -m benchmarks.control` (or `make bench-control`); what is measured and how is in docs/benchmarks.md.

    driver      the cases, one after the other      processes   the scheduler, its Redis, CPU time from /proc
    generator   the load, in a process of its own   leaders, clients   what the scheduler talks to; wire   gRPC by hand
    decisions   cost of the policy, in process      peers, http1   other routers on the same work
    report      the figures as JSON and as a table
"""
