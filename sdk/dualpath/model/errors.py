"""One tree of errors, by what the caller can do.

DualPathError
├── Refused          come later (carries retry_after_s)
│   └── Standby      another scheduler leads the cell: dial that one
├── Rejected         fix the input (carries field, found, wanted)
│   └── BlockSizeError
├── Stale            ownership lost: stop acting
├── OutcomeUnknown   ask again with the same idempotency key
└── Broken           a law of ours does not hold

Every error has a `reason`: an UPPER_SNAKE_CASE word from the table in docs/errors.md. It is the ErrorInfo reason on
the wire and a metric label, so it never carries data.
"""


class DualPathError(Exception):
    """Base of all errors a caller of DualPath may see."""

    default_reason = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason


class Refused(DualPathError):
    """Right input at a wrong time: come again after `retry_after_s` seconds."""

    default_reason = "OVERLOADED"

    def __init__(self, message: str, *, retry_after_s: float, reason: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.retry_after_s = retry_after_s


class Standby(Refused):
    """This scheduler does not lead the cell. The message names the one that does, where it is known."""

    default_reason = "STANDBY"

    def __init__(self, message: str, *, retry_after_s: float = 0.1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class Rejected(DualPathError):
    """The input can never be taken as it is; `field` names the part to fix ("" where it is the whole)."""

    default_reason = "INVALID"

    def __init__(self, message: str, *, field: str = "", reason: str | None = None, precondition: bool = False) -> None:
        super().__init__(message, reason=reason)
        self.field = field
        # True: well-formed, but our limits forbid it (FAILED_PRECONDITION); False: malformed (INVALID_ARGUMENT)
        self.precondition = precondition


class BlockSizeError(Rejected):
    """A buffer's length differs from what the layout wants."""

    default_reason = "BLOCK_SIZE"


class Stale(DualPathError):
    """Somebody with a higher epoch or attempt owns this now; nothing was changed."""

    default_reason = "STALE"


class OutcomeUnknown(DualPathError):
    """The write may or may not have happened; asking again with the same idempotency key is safe."""

    default_reason = "OUTCOME_UNKNOWN"


class Broken(DualPathError):
    """An invariant of ours does not hold; the one engine or turn concerned is quarantined."""

    default_reason = "BROKEN"
