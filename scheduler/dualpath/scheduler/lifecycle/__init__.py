"""Pure: the state table of a turn, the ledger of what is reserved, change sets and the invariants."""
