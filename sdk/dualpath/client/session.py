"""A session: one agent run whose context grows. It knows its own history, so a lost context costs one resend."""

import uuid
from collections.abc import Sequence

from dualpath.client.client import Client
from dualpath.client.handle import TurnHandle, TurnSpec
from dualpath.model.errors import DualPathError, Rejected
from dualpath.model.ids import ROOT_KEY, BlockKey
from dualpath.model.turn import EndReason, TurnResult

RESENDS_MAX = 3  # times one turn is sent again because its context was lost


class ContextLost(DualPathError):
    """The context could not be found again although the whole history was sent RESENDS_MAX times."""

    default_reason = "CONTEXT_LOST"


class Session:
    """`await session.turn([...], max_new_tokens=n)` appends tokens, generates, and remembers both."""

    def __init__(self, client: Client, *, session_id: str | None = None) -> None:
        self._client = client
        self.session_id = session_id or uuid.uuid4().hex
        self.tokens: list[int] = []  # everything so far, prompts and generations
        self._context_key: BlockKey = ROOT_KEY
        self._context_tokens = 0
        self.resends = 0
        self.last_handle: TurnHandle | None = None

    def keep(self, tokens: int) -> None:
        """Forget everything after the first `tokens` tokens: an agent that compacts its context goes on from there."""
        if tokens < len(self.tokens):
            del self.tokens[tokens:]
            if self._context_tokens > tokens:  # the scheduler finds the longest stored prefix itself
                self._context_key, self._context_tokens = ROOT_KEY, 0

    async def turn(
        self,
        append: Sequence[int],
        *,
        max_new_tokens: int,
        forced_tokens: bool = False,
        stop_tokens: Sequence[int] = (),
        deadline_s: float = 0.0,
    ) -> TurnResult:
        """One turn: everything so far + `append` is the prompt. The history grows only if the turn is committed.

        raises  Rejected or Refused where the turn is not accepted, ContextLost if resending does not help
        """
        prompt = [*self.tokens, *append]
        for _ in range(1 + RESENDS_MAX):
            spec = TurnSpec(
                tokens=tuple(prompt[self._context_tokens :]),
                max_new_tokens=max_new_tokens,
                session_id=self.session_id,
                context_key=self._context_key,
                context_tokens=self._context_tokens,
                forced_tokens=forced_tokens,
                stop_tokens=tuple(stop_tokens),
                deadline_s=deadline_s,
            )
            result = await self._try(spec)
            if result is not None:
                self._remember(prompt, result)
                return result
            # the whole prompt: the scheduler finds what is still good of it
            self._context_key, self._context_tokens = ROOT_KEY, 0
            self.resends += 1
        raise ContextLost(f"context of {len(prompt)} tokens was lost {1 + RESENDS_MAX} times")

    async def _try(self, spec: TurnSpec) -> TurnResult | None:
        """The result, or None where the context is not there (any more)."""
        self.last_handle = await self._client.submit(spec)
        try:
            result = await self.last_handle.result()
        except Rejected as error:
            if error.reason == "CONTEXT_UNKNOWN":
                return None
            raise
        return None if result.end_reason is EndReason.CONTEXT_LOST else result

    def _remember(self, prompt: list[int], result: TurnResult) -> None:
        if result.end_reason not in (EndReason.LENGTH, EndReason.STOP_TOKEN):
            return
        self.tokens = [*prompt, *result.tokens]
        self._context_key, self._context_tokens = result.context_key, result.context_tokens
