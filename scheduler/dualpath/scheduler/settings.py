"""Settings of the scheduler process: flag over DUALPATH_SCHEDULER_... variable over default; no unknown names."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dualpath.scheduler.lifecycle.order import Order
from dualpath.scheduler.policy.registry import POLICIES
from dualpath.scheduler.policy.snapshot import SKIP_AHEAD_MAX


class SchedulerSettings(BaseSettings):
    """Where it listens, where its truth lives, and the policy with its limits."""

    model_config = SettingsConfigDict(env_prefix="DUALPATH_SCHEDULER_", frozen=True, extra="forbid")

    cell: str = Field("default", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    listen: str = "127.0.0.1:7700"
    advertise: str = ""  # host:port at which clients and agents dial this one; empty: where it listens
    http: str = ""  # host:port of probes and metrics; empty: off
    data: Path = Path(".dualpath/scheduler")
    redis_url: str = ""  # redis://, rediss://, unix:// or redis+sentinel://host:port,host:port/service/db
    replicas_min: int = Field(0, ge=0, le=16)  # Redis replicas that must have a write before anybody hears of it
    store: Literal["redis", "memory"] = "redis"
    allow_unsafe_redis: bool = False  # take a Redis that could lose accepted turns, with a warning
    policy: str = "dualpath"
    alpha_tokens: int = Field(200_000, ge=0)
    beta_tokens: int = Field(400_000, ge=0)
    high_mark_factor: float = Field(1.05, ge=1.0, le=10.0)
    skip_ahead_turns: int = Field(0, ge=0, le=SKIP_AHEAD_MAX)
    overtakes_max: int = Field(100, ge=1)
    order: Order = Order.FIFO
    tenant_turns_max: int = Field(0, ge=0)
    tenant_tokens_max: int = Field(0, ge=0)
    slow_start_s: float = Field(5.0, ge=0)
    lease_s: float = Field(3.0, gt=0)
    store_lease_s: float = Field(3.0, gt=0)
    attempts_max: int = Field(3, ge=1)
    waiting_turns_max: int = Field(100_000, ge=1)
    waiting_tokens_max: int = Field(20_000_000_000, ge=1)
    waiting_bytes_max: int = Field(4 << 30, ge=1)
    ready_file: Path | None = None
    log_level: str = "info"

    @model_validator(mode="after")
    def _policy_is_known(self) -> "SchedulerSettings":
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}, wanted one of {', '.join(sorted(POLICIES))}")
        return self
