"""Block stores: in memory, and in a directory (a local disk or a 3FS mount)."""
