"""The SDK under refusals: what is offered again, how fast, in which order, and for how long."""

import asyncio
import random

from dualpath.client.handle import TurnHandle, TurnSpec
from dualpath.client.offers import RETRY_SHARE, SAVED_MAX, Offers
from dualpath.model.errors import DualPathError, Refused


class Bench:
    """Offers with a clock that the test moves; `step` does what the task would."""

    def __init__(self, *, patience_s: float = 100.0) -> None:
        self.now_s = 1000.0
        self.sent: list[str] = []
        self.failed: list[tuple[str, str]] = []
        self.offers = Offers(
            lambda handle: self.sent.append(handle.idempotency_key),
            self._fail,
            patience_s=patience_s,
            chance=random.Random(1),
            clock=lambda: self.now_s,
        )

    def _fail(self, handle: TurnHandle, error: DualPathError) -> None:
        self.failed.append((handle.idempotency_key, str(error)))
        handle.fail(error)

    def turn(self, name: str) -> TurnHandle:
        return TurnHandle(name, TurnSpec((1,), 1))

    async def advance(self, seconds: float) -> None:
        """In steps of 10 ms, each with as much as is allowed by then."""
        for _ in range(round(seconds * 100)):
            self.now_s += 0.01
            while self.offers._held and self.offers._step() == 0.0:
                pass
        await asyncio.sleep(0)


async def test_turns_go_out_at_once_until_one_is_refused_and_then_behind_it() -> None:
    bench = Bench()
    first, second = bench.turn("a"), bench.turn("b")
    bench.offers.new(first)
    sent_at_once = list(bench.sent)
    bench.offers.refused(first, Refused("full", retry_after_s=0.5))
    bench.offers.new(second)
    await bench.advance(3.0)
    await bench.offers.close()

    assert sent_at_once == ["a"]
    assert bench.sent == ["a", "a", "b"]


async def test_nothing_is_offered_before_the_time_that_the_refusal_named() -> None:
    bench = Bench()
    bench.offers.refused(bench.turn("a"), Refused("full", retry_after_s=2.0))
    await bench.advance(1.4)  # 2 s less the jitter is 1.5 s
    early = list(bench.sent)
    await bench.advance(1.2)
    await bench.offers.close()

    assert (early, bench.sent) == ([], ["a"])


async def test_offers_follow_what_ends_and_a_trickle() -> None:
    bench = Bench()
    for n in range(200):
        bench.offers.refused(bench.turn(f"r{n}"), Refused("full", retry_after_s=0.0))
    for n in range(50):  # 10 turns a second end, for 5 s
        bench.offers.ended(bench.turn(f"e{n}"))
        await bench.advance(0.1)
    offered = len(bench.sent)
    await bench.offers.close()

    assert 50 <= offered <= 50 * (1 + RETRY_SHARE) + 5 + 1


async def test_a_quiet_time_saves_up_no_flood() -> None:
    bench = Bench()
    for n in range(200):
        bench.offers.refused(bench.turn(f"r{n}"), Refused("full", retry_after_s=60.0))
    for n in range(100):
        bench.offers.ended(bench.turn(f"e{n}"))
    await bench.advance(76.0)
    await bench.offers.close()

    assert len(bench.sent) <= SAVED_MAX + 17


async def test_patience_ends_with_the_last_refusal() -> None:
    bench = Bench(patience_s=5.0)
    turn = bench.turn("a")
    for _ in range(4):
        bench.offers.refused(turn, Refused("100 turns wait, the bound is 100", retry_after_s=1.0))
        await bench.advance(2.0)
    await bench.offers.close()

    assert bench.failed == [("a", "100 turns wait, the bound is 100")]
    assert turn.is_done
