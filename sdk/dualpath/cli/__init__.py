"""The one command, `dualpath`."""
