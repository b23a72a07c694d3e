"""What the cluster does with a turn: storage NICs, buffers, prefill and decode engines, in virtual time."""
