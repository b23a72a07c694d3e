"""What an agent needs from outside: compute, transfers, peers. Each Protocol has a real and a second implementation."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from dualpath.engine_agent.plan.notes import AttemptKey, Offer, PeerAbort, PrefillDone
from dualpath.model.ids import NodeId

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
