"""The two NICs of a node and what passed them (paper §3, §5).

With a rate, a NIC is emulated: real bytes wait as they would on a link of that rate, reads and writes each in their own
direction. Without one the real NIC rules and only the bytes are counted.
"""

from dataclasses import dataclass

from dualpath.model.load import NicBytes
from dualpath.storage_shim.wrappers.paced import LinkPacer


@dataclass(frozen=True, slots=True)
class Nics:
    """Storage NIC and compute NIC, a pacer for each direction."""

    snic_read: LinkPacer
    snic_write: LinkPacer
    cnic_sent: LinkPacer
    cnic_received: LinkPacer

    @classmethod
    def with_rates(cls, *, snic_bytes_per_s: float | None, cnic_bytes_per_s: float | None) -> "Nics":
        return cls(
            snic_read=LinkPacer(snic_bytes_per_s),
            snic_write=LinkPacer(snic_bytes_per_s),
            cnic_sent=LinkPacer(cnic_bytes_per_s),
            cnic_received=LinkPacer(cnic_bytes_per_s),
        )

    def bytes_moved(self) -> NicBytes:
        return NicBytes(
            snic_read=self.snic_read.taken_bytes,
            snic_written=self.snic_write.taken_bytes,
            cnic_sent=self.cnic_sent.taken_bytes,
            cnic_received=self.cnic_received.taken_bytes,
        )
