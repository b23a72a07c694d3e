"""Settings of one agent process: flag over DUALPATH_AGENT_... variable over file over default."""

import json
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dualpath.model.turn import Role


class AgentSettings(BaseSettings):
    """One node: its role, engines, storage, NICs and bounds."""

    model_config = SettingsConfigDict(env_prefix="DUALPATH_AGENT_", frozen=True, extra="forbid")

    role: Role
    node_id: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    group_id: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    cell: str = "default"
    scheduler: str = "127.0.0.1:7700"  # host:port, several separated by commas
    leader: str = ""  # host:port of the group's leader; empty: this node leads
    group_nodes: int = Field(1, ge=1, le=64)
    listen: str = "127.0.0.1:0"
    advertise: str = ""  # host:port that peers dial; empty: the address it listens on
    engines: int = Field(1, ge=1, le=64)
    engine: str = "reference"
    engine_options: dict[str, Any] = {}
    storage: Path = Path(".dualpath/kv")
    durable_storage: bool = True  # fsync each block before it counts as stored
    tenant: str = "default"
    data: Path = Path(".dualpath/agent")
    ready_file: Path | None = None
    snic_bytes_per_s: float | None = Field(None, gt=0)
    cnic_bytes_per_s: float | None = Field(None, gt=0)
    buffer_bytes: int = Field(1 << 30, ge=1)
    hbm_tokens: int = Field(262_144, ge=64)
    quota_s: float = Field(0.3, gt=0)
    attention_s_per_token_pair: float = Field(2e-9, ge=0)
    attention_s_per_token: float = Field(1e-5, ge=0)
    reader_threads: int = Field(4, ge=1, le=64)
    reads_waiting_max: int = Field(4096, ge=1)
    writer_threads: int = Field(2, ge=1, le=64)
    blocks_staged_max: int = Field(64, ge=1)
    peer_wait_s: float = Field(60.0, gt=0)
    drain_s: float = Field(10.0, ge=0)

    @field_validator("engine_options", mode="before")
    @classmethod
    def _options_from_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _leader_leads_itself(self) -> "AgentSettings":
        if self.leader and self.group_nodes != 1:
            raise ValueError("group_nodes is the leader's to know: leave it out where --leader is given")
        return self
