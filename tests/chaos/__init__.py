"""Reliability on real processes: a soak, a kill storm, and seeded faults judged by an independent checker.

Not part of the normal test run: `make soak`, `make storm`, `make chaos` (Linux alone: it reads /proc). Each tells its
progress on stderr, prints one JSON line per property, and ends with exit status 0 only where everything held. See
docs/reliability.md.

    storm     soak     episodes     the suites; each has a `main`
    faults    checker  recount      what is done to a cell, and who judges it
    stack     cluster  network      a small cell on loopback; a large one on hosts of its own
    load      history  report       agent programs, what they saw, what came out
"""
