"""Block keys and namespaces, as the shim's users import them; the functions live with the shared words."""

from dualpath.model.keys import block_key, chain_keys, longest_prefix, namespace_for

__all__ = ["block_key", "chain_keys", "longest_prefix", "namespace_for"]
