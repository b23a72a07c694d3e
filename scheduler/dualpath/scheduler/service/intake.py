"""Taking turns in: checks with the field to fix, limits with both numbers, one change set, then the answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dualpath.model.errors import Refused, Rejected
from dualpath.model.ids import BLOCK_KEY_BYTES, ROOT_KEY, BlockKey, SessionId, TurnId
from dualpath.model.keys import chain_keys
from dualpath.model.turn import Turn
from dualpath.scheduler.lifecycle.order import PRIORITY_MAX
from dualpath.scheduler.lifecycle.records import TurnEntry
from dualpath.scheduler.service.core import Core

IDEMPOTENCY_BYTES_MAX = 128
SESSION_BYTES_MAX = 256
TENANT_BYTES_MAX = 64
STOP_TOKENS_MAX = 64
TOKEN_BITS = 32
OVERLOAD_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Submission:
    """A turn as a client sends it; see SubmitTurn in turns.proto."""

    idempotency_key: str
    session_id: SessionId
    context_key: BlockKey
    context_tokens: int
    tokens: tuple[int, ...]
    max_new_tokens: int
    forced_tokens: bool = False
    stop_tokens: tuple[int, ...] = ()
    deadline_s: float = 0.0
    tenant: str = ""
    priority: int = 0


class Intake:
    """Turns submissions into accepted turns."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def submit(self, submission: Submission) -> TurnEntry:
        """`accept`, returning once the turn is in the store."""
        accepted: asyncio.Future[TurnEntry] = asyncio.get_running_loop().create_future()
        self.accept(submission, lambda entry: None if accepted.done() else accepted.set_result(entry))
        return await accepted

    def accept(self, submission: Submission, durable: Callable[[TurnEntry], None]) -> None:
        """Accept a turn, or find the one this idempotency key named before; `durable` hears once it is in the store.

        raises  Rejected (fix the input), Refused (come later)
        """
        core = self._core
        check_fields(submission, prompt_max=core.bounds.prompt_tokens_max, new_max=core.bounds.new_tokens_max)
        known = core.ledger.idempotency.get(submission.idempotency_key)
        if known is not None:
            self._answer(_same_turn(core.ledger.turns[known], submission), durable)
            return
        self._check_room(submission)
        turn = self._resolve(submission)
        self._check_fits(turn)
        self._answer(core.ledger.accept(turn, now_s=core.now_s()), durable)
        core.wake.set()

    def _answer(self, entry: TurnEntry, durable: Callable[[TurnEntry], None]) -> None:
        """After the write. A turn may end while that is under way: its end is written next, and told only then."""
        journal, turn_id = self._core.journal, entry.turn.turn_id

        def say() -> None:
            if entry.state.is_terminal and not entry.is_stored_whole:
                journal.append(turn_id, say)
            else:
                durable(entry)

        journal.append(turn_id, say)

    def _check_room(self, submission: Submission) -> None:
        """raises Refused where the turn would pass a bound, of the whole cell or of its tenant"""
        bounds, core = self._core.bounds, self._core
        prompt = submission.context_tokens + len(submission.tokens)
        whole = core.ledger.waiting.all
        if whole.turns >= bounds.waiting_turns_max:
            raise _overload(f"{whole.turns} turns wait, the bound is {bounds.waiting_turns_max}")
        if whole.tokens + prompt > bounds.waiting_tokens_max:
            raise _overload(f"{whole.tokens + prompt} tokens would wait, the bound is {bounds.waiting_tokens_max}")
        if whole.bytes > bounds.waiting_bytes_max:
            raise _overload(f"{whole.bytes} bytes of prompts wait, the bound is {bounds.waiting_bytes_max}")
        if bounds.tenant_turns_max or bounds.tenant_tokens_max:
            own, name = core.ledger.waiting.of(submission.tenant), submission.tenant
            if bounds.tenant_turns_max and own.turns >= bounds.tenant_turns_max:
                raise _overload(f"{own.turns} turns of tenant {name!r} wait, its bound is {bounds.tenant_turns_max}")
            if bounds.tenant_tokens_max and own.tokens + prompt > bounds.tenant_tokens_max:
                found = f"{own.tokens + prompt} tokens of tenant {name!r} would wait"
                raise _overload(f"{found}, its bound is {bounds.tenant_tokens_max}")
        if core.journal.is_full:
            raise _overload("the store is behind: too many change sets wait for it")

    def _resolve(self, submission: Submission) -> Turn:
        """Find the context: by its key, or for a whole prompt the longest committed prefix."""
        core = self._core
        hit_keys, tokens = self._by_key(submission) if submission.context_tokens else self._by_tokens(submission)
        # not blocks x block size: after a restart contexts are known before any group that could tell the size
        hit_tokens = (core.ledger.contexts.tokens_at(hit_keys[-1]) or 0) if hit_keys else 0
        deadline_s = submission.deadline_s or core.bounds.deadline_s
        return Turn(
            turn_id=TurnId(core.ids.turn_id()),
            session_id=submission.session_id,
            arrival=core.ledger.last_arrival + 1,
            tokens=tokens,
            max_new_tokens=submission.max_new_tokens,
            context_key=hit_keys[-1] if hit_keys else ROOT_KEY,
            hit_tokens=hit_tokens,
            hit_keys=hit_keys,
            forced_tokens=submission.forced_tokens,
            stop_tokens=submission.stop_tokens,
            deadline_at_s=core.now_s() + deadline_s,
            idempotency_key=submission.idempotency_key,
            tenant=submission.tenant,
            priority=submission.priority,
            tag=core.ledger.tag(submission.tenant, submission.priority, hit_tokens + len(tokens)),
        )

    def _by_key(self, submission: Submission) -> tuple[tuple[BlockKey, ...], tuple[int, ...]]:
        contexts = self._core.ledger.contexts
        known_tokens = contexts.tokens_at(submission.context_key)
        chain = contexts.chain(submission.context_key)
        if known_tokens is None or chain is None:
            message = "context_key names no committed context here; submit the whole prompt"
            raise Rejected(message, field="context_key", reason="CONTEXT_UNKNOWN", precondition=True)
        if known_tokens != submission.context_tokens:
            message = f"context_tokens is {submission.context_tokens}, the context of this key has {known_tokens}"
            raise Rejected(message, field="context_tokens")
        return chain, submission.tokens

    def _by_tokens(self, submission: Submission) -> tuple[tuple[BlockKey, ...], tuple[int, ...]]:
        groups = self._core.ledger.groups.values()
        hello = next((group.hello for group in groups), None)
        if hello is None or not len(self._core.ledger.contexts):
            return (), submission.tokens
        # at least one token is left to compute: without it there would be no logits to sample from
        whole = submission.tokens[: len(submission.tokens) - 1]
        keys = chain_keys(hello.namespace, whole, block_tokens=hello.block_tokens)
        good = self._core.ledger.contexts.longest_prefix(keys)
        return keys[:good], submission.tokens[good * hello.block_tokens :]

    def _check_fits(self, turn: Turn) -> None:
        """A turn that nothing here could ever hold is refused at once, not left at the head of a line (L1)."""
        loads = self._core.ledger.loads
        total, longest, largest = turn.total_tokens_max, loads.tokens_max, loads.hbm_tokens_max
        if longest is not None and total > longest:
            message = f"prompt + max_new_tokens is {total} tokens, the model takes {longest}"
            raise Rejected(message, field="tokens", reason="TOO_LONG", precondition=True)
        if largest is not None and total > largest:
            message = f"prompt + max_new_tokens is {total} tokens, the largest decode engine holds {largest}"
            raise Rejected(message, field="tokens", reason="EXCEEDS_HBM", precondition=True)


def check_fields(submission: Submission, *, prompt_max: int, new_max: int) -> None:
    """raises Rejected naming the first malformed field, what was found and what was wanted"""
    key_bytes = len(submission.idempotency_key.encode())
    if not 1 <= key_bytes <= IDEMPOTENCY_BYTES_MAX:
        raise _malformed("idempotency_key", f"has {key_bytes} bytes", f"1 to {IDEMPOTENCY_BYTES_MAX}")
    session_bytes = len(submission.session_id.encode())
    if session_bytes > SESSION_BYTES_MAX:
        raise _malformed("session_id", f"has {session_bytes} bytes", f"at most {SESSION_BYTES_MAX}")
    if not submission.tokens:
        raise _malformed("tokens", "is empty", "at least one token after the context")
    prompt = submission.context_tokens + len(submission.tokens)
    if prompt > prompt_max:
        raise _malformed("tokens", f"make a prompt of {prompt} tokens", f"at most {prompt_max}")
    if not 1 <= submission.max_new_tokens <= new_max:
        raise _malformed("max_new_tokens", f"is {submission.max_new_tokens}", f"1 to {new_max}")
    if len(submission.stop_tokens) > STOP_TOKENS_MAX:
        raise _malformed("stop_tokens", f"has {len(submission.stop_tokens)} entries", f"at most {STOP_TOKENS_MAX}")
    tenant_bytes = len(submission.tenant.encode())
    if tenant_bytes > TENANT_BYTES_MAX:
        raise _malformed("tenant", f"has {tenant_bytes} bytes", f"at most {TENANT_BYTES_MAX}")
    if not 0 <= submission.priority <= PRIORITY_MAX:
        raise _malformed("priority", f"is {submission.priority}", f"0 to {PRIORITY_MAX}")
    if submission.deadline_s < 0:
        raise _malformed("deadline_s", f"is {submission.deadline_s}", "0 or more")
    has_key = submission.context_key != ROOT_KEY
    if has_key and len(submission.context_key) != BLOCK_KEY_BYTES:
        raise _malformed("context_key", f"has {len(submission.context_key)} bytes", f"{BLOCK_KEY_BYTES} or none")
    if has_key != (submission.context_tokens > 0):
        raise _malformed("context_tokens", f"is {submission.context_tokens}", "more than 0 exactly with a context_key")


def _same_turn(entry: TurnEntry, submission: Submission) -> TurnEntry:
    turn = entry.turn
    prompt = submission.context_tokens + len(submission.tokens)
    same_end = submission.tokens[-len(turn.tokens) :] == turn.tokens
    if prompt != turn.prompt_tokens or submission.max_new_tokens != turn.max_new_tokens or not same_end:
        message = (
            f"idempotency_key names turn {turn.turn_id} of {turn.prompt_tokens} + {turn.max_new_tokens} tokens, "
            f"this one has {prompt} + {submission.max_new_tokens}, or other content"
        )
        raise Rejected(message, field="idempotency_key", reason="IDEMPOTENCY_REUSED", precondition=True)
    return entry


def _malformed(field: str, found: str, wanted: str) -> Rejected:
    return Rejected(f"{field} {found}, wanted {wanted}", field=field)


def _overload(message: str) -> Refused:
    return Refused(message, retry_after_s=OVERLOAD_RETRY_S, reason="OVERLOADED")
