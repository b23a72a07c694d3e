"""The traffic manager: moves KV along a plan's path within the node's buffers and NICs, and drives its engines."""
