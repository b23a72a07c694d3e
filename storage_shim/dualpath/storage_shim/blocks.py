"""Views of full blocks and their layer blocks: the same bytes, never copied (paper §A.5)."""

from dualpath.model.errors import BlockSizeError
from dualpath.model.layout import BlockLayout


def layer_views(block: memoryview, layout: BlockLayout) -> list[memoryview]:
    """Cut one full block into its layer blocks without copying.

    block   [num_layers, block_tokens, bytes_per_token_layer] bytes, C order
    return  num_layers views, each [1, block_tokens, bytes_per_token_layer]; they share the block's memory
    raises  BlockSizeError if len(block) differs from layout.full_block_bytes
    """
    check_block(block, layout)
    size = layout.layer_block_bytes
    return [block[layer * size : (layer + 1) * size] for layer in range(layout.num_layers)]


def block_views(region: memoryview, layout: BlockLayout) -> list[memoryview]:
    """Cut a region of full blocks laid end to end into its blocks; raises BlockSizeError on a rest."""
    size = layout.full_block_bytes
    if len(region) % size:
        raise BlockSizeError(f"region has {len(region)} bytes, layout wants a multiple of {size}")
    return [region[start : start + size] for start in range(0, len(region), size)]


def check_block(block: memoryview, layout: BlockLayout) -> None:
    if len(block) != layout.full_block_bytes:
        raise BlockSizeError(f"block has {len(block)} bytes, layout wants {layout.full_block_bytes}")
