"""The shape of KV blocks (paper §A.5): a full block is its layer blocks end to end, so nothing is ever converted."""

import hashlib
from dataclasses import dataclass

from dualpath.model.errors import Rejected

BLOCK_TOKENS = 64  # tokens per stored block (paper §A.5)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Shape of one full block: [num_layers, block_tokens, bytes_per_token_layer] bytes in C order."""

    num_layers: int
    block_tokens: int
    bytes_per_token_layer: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "block_tokens", "bytes_per_token_layer"):
            found = getattr(self, name)
            if found < 1:
                raise Rejected(f"layout {name} is {found}, wanted at least 1", field=name, reason="LAYOUT")

    @property
    def layer_block_bytes(self) -> int:
        return self.block_tokens * self.bytes_per_token_layer

    @property
    def full_block_bytes(self) -> int:
        return self.num_layers * self.layer_block_bytes

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return self.num_layers * self.bytes_per_token_layer

    def blocks_for(self, tokens: int) -> int:
        """Blocks needed to hold `tokens` tokens, the last one perhaps not full."""
        return -(-tokens // self.block_tokens)

    def full_blocks_in(self, tokens: int) -> int:
        """Whole blocks contained in `tokens` tokens."""
        return tokens // self.block_tokens

    @property
    def layout_hash(self) -> str:
        """Sixteen hex digits that differ when any of the three numbers differs; compared at Hello and in manifests."""
        text = f"{self.num_layers}:{self.block_tokens}:{self.bytes_per_token_layer}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.num_layers} layers x {self.block_tokens} tokens x {self.bytes_per_token_layer} B"
