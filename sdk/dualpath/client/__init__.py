"""Submit agent turns to a DualPath cell: `from dualpath.client import Client, Session`."""

from dualpath.client.client import Client
from dualpath.client.handle import TurnEvent, TurnHandle, TurnSpec
from dualpath.client.session import ContextLost, Session
from dualpath.client.sync import SyncClient, SyncSession

__all__ = ["Client", "ContextLost", "Session", "SyncClient", "SyncSession", "TurnEvent", "TurnHandle", "TurnSpec"]
