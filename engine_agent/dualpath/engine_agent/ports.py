"""What an agent needs from outside: compute, transfers, peers. Each Protocol has a real and a second implementation."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dualpath.engine_agent.plan.notes import AttemptKey, Offer, PeerAbort, PrefillDone
from dualpath.model.ids import NodeId
from dualpath.model.layout import BlockLayout

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ForwardChunk:
    """What one forward computes of a turn: `tokens` after `cached` tokens that have KV already.

    is_last  these tokens end the prompt: the forward gives the first generated token
    """

    tokens: tuple[int, ...]
    cached: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Sampled:
    """One generated token and, where the engine has any, its logits [vocab_size] float32."""

    token: int
    logits: Floats | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether generated tokens are what a full recompute without any cache gives.

    smallest_margin  least distance between the best and the second best logit: how far rounding was from mattering
    """

    equal: bool
    tokens_checked: int
    first_mismatch: int | None
    smallest_margin: float


class ComputeEngine(Protocol):
    """One GPU's model. Calls block; the agent calls from one thread per engine.

    KV blocks are bytes as BlockLayout says. Prefill runs layer by layer and holds one layer's prefix KV at a time
    (paper §4.1, layerwise prefill); decode keeps the KV of admitted turns in the engine ("HBM").
    """

    @property
    def layout(self) -> BlockLayout: ...

    @property
    def model_name(self) -> str: ...

    @property
    def model_revision(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def tokens_max(self) -> int:
        """Longest context, prompt and generation together."""
        ...

    def begin_forward(self, chunks: Sequence[ForwardChunk]) -> Any:
        """Start one forward batch; raises Rejected for no tokens, tokens outside the vocabulary, or a context too long.

        What comes back belongs to the engine. Dropping it, or ending it early, frees all it holds.
        """
        ...

    def forward_layer(
        self, forward: Any, layer: int, cached_kv: Sequence[Sequence[memoryview]]
    ) -> Sequence[memoryview]:
        """Compute layer `layer`; layers come in order.

        cached_kv  per chunk, the layer blocks [block_tokens, bytes_per_token_layer] of its cached tokens, in order
        return     per chunk, the KV of its new tokens [len(tokens), bytes_per_token_layer], C order
        raises     BlockSizeError for blocks that do not hold exactly the cached tokens, Rejected for a layer out of
                   turn, Broken(KV_MISMATCH) where the engine can tell that the KV is not what was computed
        """
        ...

    def end_forward(self, forward: Any) -> Sequence[Sampled | None]:
        """The first generated token of each chunk that ends its prompt, None for the others.

        After fewer than all layers the forward is given up: None for each. raises Broken(NOT_FINITE) for NaN logits.
        """
        ...

    def admit(self, slot: str, blocks: Sequence[memoryview], tokens: int, tokens_max: int, first_token: int) -> None:
        """Copy a prompt's KV from the host: full blocks [num_layers, block_tokens, bytes_per_token_layer].

        tokens      prompt tokens, all with KV; the last block may be partly filled
        tokens_max  tokens the slot must be able to hold
        raises      BlockSizeError, Rejected(SLOT_TAKEN, SLOT_FULL, TOO_LONG, VOCABULARY), Broken(KV_MISMATCH);
                    nothing is admitted then
        """
        ...

    def decode_step(self, slots: Sequence[str]) -> Sequence[Sampled]:
        """One step of a continuous batch: each slot's last token gets its KV, the next token comes out.

        raises  Rejected(UNKNOWN_SLOT, SLOT_FULL) or Broken(NOT_FINITE); no slot has moved on then
        """
        ...

    def kv_tokens(self, slot: str) -> int:
        """Tokens of the slot that have KV."""
        ...

    def copy_block(self, slot: str, index: int, into: memoryview) -> None:
        """Copy one full block to the host; raises Rejected if its tokens do not all have KV yet."""
        ...

    def release(self, slot: str) -> None:
        """Free a slot; releasing twice, or an unknown slot, is fine."""
        ...

    def verify(self, prompt: Sequence[int], generated: Sequence[int]) -> Verdict:
        """Check a turn against a full recompute that uses no cache."""
        ...


Piece = tuple[int, memoryview]
"""(offset in the peer's region, this side's memory): one contiguous part of a transfer."""


class TransferLink(Protocol):
    """A way into one peer's regions. Requests are carried out in the order they are posted."""

    def write(self, region: int, pieces: Sequence[Piece]) -> "Future[None]":
        """Put each piece's memory at its offset; the future is done when the peer holds the bytes."""
        ...

    def read(self, region: int, pieces: Sequence[Piece]) -> "Future[None]":
        """Fill each piece's memory from its offset; sees every write posted before on this link."""
        ...

    def close(self) -> None: ...


class TransferBackend(Protocol):
    """One-sided transfers between registered memory (paper §5): what an RDMA NIC does."""

    @property
    def kind(self) -> str: ...

    @property
    def address(self) -> str: ...

    def register(self, memory: memoryview) -> int:
        """Open memory to peers that are told the returned number."""
        ...

    def deregister(self, region: int) -> "Future[None]":
        """Close a region; done when nothing touches its memory any more. Idempotent."""
        ...

    def connect(self, address: str) -> TransferLink:
        """Dial a peer (blocking); raises Refused if it cannot be reached."""
        ...

    def close(self) -> None: ...


class PeerLink(Protocol):
    """A PE's control link to the node of a DE. Every call names the attempt."""

    @property
    def transfer(self) -> TransferLink: ...

    async def want(self, key: AttemptKey) -> Offer | PeerAbort:
        """Ask for the DE buffer and wait for it; raises Refused(PEER_LOST) if the link breaks."""
        ...

    async def aborted(self, key: AttemptKey) -> PeerAbort:
        """Return when the DE gives the attempt up after its offer; raises Refused(PEER_LOST) if the link breaks."""
        ...

    def prefill_done(self, done: PrefillDone) -> None: ...

    def abort(self, abort: PeerAbort) -> None: ...

    def forget(self, key: AttemptKey) -> None:
        """Nothing more is expected about this attempt."""
        ...


class PeerDirectory(Protocol):
    """Links to the nodes of DEs, dialled when first needed."""

    async def link(self, node_id: NodeId, address: str) -> PeerLink: ...


class OfferLink(Protocol):
    """A DE's view of the PE node that asked: answers go back on the same link."""

    def offer(self, offer: Offer) -> None: ...

    def abort(self, abort: PeerAbort) -> None: ...
