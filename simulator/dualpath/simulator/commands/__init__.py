"""What a user calls: `dualpath sim run|compare|tune|plan|reproduce`."""
