"""Around any backend: pacing (emulated NICs), metering, and faults on purpose."""
