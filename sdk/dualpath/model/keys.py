"""Names of KV blocks: a chained SHA-256 over (namespace, parent, tokens), the same in every process (paper §A.5, trie).

A key fixes everything that decides the block's bytes: whose it is, which model and layout, and all tokens from the
session's root to the block's end. Fields are tagged and length-prefixed, so no two inputs hash the same text.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Sequence

from dualpath.model.errors import Rejected
from dualpath.model.ids import BLOCK_KEY_BYTES, ROOT_KEY, BlockKey, Namespace
from dualpath.model.layout import BLOCK_TOKENS, BlockLayout

_TAG = b"dualpath.block.v1"
_NAME = re.compile(r"^[A-Za-z0-9._@+-]{1,128}$")


def namespace_for(
    model_name: str, model_revision: str, dtype: str, layout: BlockLayout, *, tenant: str = "default"
) -> Namespace:
    """tenant + model revision + dtype + layout: blocks of different namespaces never meet.

    raises  Rejected for a field with other characters than letters, digits and ._@+-
    """
    fields = {"tenant": tenant, "model_name": model_name, "model_revision": model_revision, "dtype": dtype}
    for field, text in fields.items():
        if not _NAME.match(text):
            raise Rejected(f"{field} is {text!r}, wanted 1 to 128 of A-Z a-z 0-9 . _ @ + -", field=field)
    return Namespace("/".join((*fields.values(), layout.layout_hash)))


def block_key(namespace: Namespace, parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """Key of the block that holds `tokens` after `parent`; raises Rejected for a parent of another length."""
    if len(parent) != BLOCK_KEY_BYTES:
        raise Rejected(f"parent key has {len(parent)} bytes, wanted {BLOCK_KEY_BYTES}", field="parent")
    name = namespace.encode()
    digest = hashlib.sha256(_TAG)
    digest.update(struct.pack("<I", len(name)) + name)
    digest.update(parent)
    digest.update(struct.pack(f"<I{len(tokens)}I", len(tokens), *tokens))
    return BlockKey(digest.digest())


def chain_keys(
    namespace: Namespace,
    tokens: Sequence[int],
    *,
    parent: BlockKey = ROOT_KEY,
    block_tokens: int = BLOCK_TOKENS,
) -> tuple[BlockKey, ...]:
    """Keys of all whole blocks of `tokens`, in order, continuing from `parent`; a shorter rest has none."""
    keys: list[BlockKey] = []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = block_key(namespace, parent, tokens[start : start + block_tokens])
        keys.append(parent)
    return tuple(keys)


def longest_prefix(keys: Sequence[BlockKey], contains: Callable[[BlockKey], bool]) -> int:
    """How many blocks from the root are there without a gap. Linear: a gap further on must not hide an earlier one."""
    for count, key in enumerate(keys):
        if not contains(key):
            return count
    return len(keys)
