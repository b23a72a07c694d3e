"""Identifiers, one type each, so that a node is never passed where an engine is wanted."""

from typing import NewType

CellId = NewType("CellId", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
NodeId = NewType("NodeId", str)
EngineId = NewType("EngineId", str)  # "{node_id}/g{rank}", one GPU
GroupId = NewType("GroupId", str)
Namespace = NewType("Namespace", str)  # tenant + model revision + dtype + layout, see storage_shim
BlockKey = NewType("BlockKey", bytes)  # 32 bytes: chained SHA-256 of (namespace, parent, tokens)

BLOCK_KEY_BYTES = 32
ROOT_KEY = BlockKey(bytes(BLOCK_KEY_BYTES))  # the parent of a session's first block
