"""What `dualpath up` starts: the shape of a cell on this machine, from a TOML file or the default."""

import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dualpath.model.errors import Rejected

MEBI = 1 << 20


class CellConfig(BaseModel):
    """Every field has a default; an unknown field is an error. Sizes of one node; `mb` is 10^6 bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: str = "1P2D"  # prefill nodes and decode nodes
    address: str = "127.0.0.1:7700"
    policy: str = "dualpath"
    data: Path = Path(".dualpath")
    engines_per_node: int = Field(1, ge=1, le=16)
    nodes_per_group: int = Field(1, ge=1, le=16)  # nodes of one role that fetch together; the first one leads
    engine: str = "reference"
    engine_options: dict[str, Any] = {}
    # Emulated NICs make one machine behave like a small cluster, bound by storage; 0: as fast as disk and loopback are.
    snic_mb_per_s: float = Field(30.0, ge=0)
    cnic_mb_per_s: float = Field(400.0, ge=0)
    buffer_mb: float = Field(512, gt=0)
    hbm_tokens: int = Field(200_000, ge=64)
    quota_s: float = Field(0.3, gt=0)
    alpha_tokens: int | None = Field(None, ge=0)
    beta_tokens: int | None = Field(None, ge=0)
    lease_s: float | None = Field(None, gt=0)
    redis_url: str = ""
    http: str = ""
    durable_storage: bool = False  # fsync each block; a demo on one machine can recompute after a power cut

    @field_validator("shape")
    @classmethod
    def _shape_has_both_roles(cls, shape: str) -> str:
        if not re.fullmatch(r"[1-9]\d?P[1-9]\d?D", shape):
            raise ValueError(f"shape is {shape!r}, wanted like 1P2D, from 1 to 99 nodes each")
        return shape

    @property
    def prefill_nodes(self) -> int:
        return int(self.shape.partition("P")[0])

    @property
    def decode_nodes(self) -> int:
        return int(self.shape.partition("P")[2].removesuffix("D"))


def load_config(path: Path | None, **overrides: Any) -> CellConfig:
    """The file's fields (if any) under the given ones; raises Rejected naming the field, found and wanted."""
    fields: dict[str, Any] = {}
    if path is not None:
        try:
            fields = tomllib.loads(path.read_text())
        except OSError as error:
            raise Rejected(f"{path}: {error.strerror}", field="config") from error
        except tomllib.TOMLDecodeError as error:
            raise Rejected(f"{path}: {error}", field="config") from error
    fields |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return CellConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = ", ".join(CellConfig.model_fields)
        hint = f"; known fields: {known}" if first["type"] == "extra_forbidden" else ""
        where = f"{path}: " if path else ""
        raise Rejected(f"{where}{name}: {first['msg']}{hint}", field=name) from error
