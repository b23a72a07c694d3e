"""The emulated engine: every wrong KV byte is noticed, time is the cost model's, tokens follow from ids alone."""

import numpy as np
import pytest

from dualpath.engine_agent.engines.emulated import EmulatedCost, EmulatedEngine
from dualpath.engine_agent.engines.emulated_kv import FOLD_FACTOR, FOLD_STEP, FOLD_TOKENS_MAX, KvPattern, fold
from dualpath.engine_agent.ports import ForwardChunk
from dualpath.model.errors import Broken, Rejected
from dualpath.model.layout import BlockLayout
from engine_support import HostKv, Item, admit, forward, prefill, random_tokens, small_emulated

# ---- what is noticed


def zero_a_block(host: HostKv) -> None:
    host.bytes[1] = 0


def swap_two_blocks(host: HostKv) -> None:
    host.bytes[[0, 1]] = host.bytes[[1, 0]]


def repeat_a_block(host: HostKv) -> None:
    host.bytes[1] = host.bytes[0]


def swap_two_layers(host: HostKv) -> None:
    host.bytes[1, [1, 2]] = host.bytes[1, [2, 1]]


def swap_two_tokens(host: HostKv) -> None:
    host.bytes[1, :, [5, 6]] = host.bytes[1, :, [6, 5]]


def change_a_token_id(host: HostKv) -> None:
    host.bytes[1, :, 5, 0] ^= 1


def cut_the_end_of_a_row(host: HostKv) -> None:
    host.bytes[1, :, 63, -1] ^= 1


DAMAGES = (
    zero_a_block,
    swap_two_blocks,
    repeat_a_block,
    swap_two_layers,
    swap_two_tokens,
    change_a_token_id,
    cut_the_end_of_a_row,
)


@pytest.mark.parametrize("check_bytes", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_kv_is_broken_wherever_it_comes_in(damage: object, check_bytes: bool) -> None:
    engine = small_emulated(check_bytes=check_bytes)
    host, first = prefill(engine, random_tokens(150, seed=1))
    assert callable(damage)
    damage(host)

    with pytest.raises(Broken) as at_prefill:
        forward(engine, [Item(host.copy(), [1])])
    with pytest.raises(Broken) as at_admit:
        admit(engine, "t", host, first.token, room=5)

    assert {at_prefill.value.reason, at_admit.value.reason} == {"KV_MISMATCH"}


def test_each_single_byte_counts_when_all_are_checked() -> None:
    engine = small_emulated(check_bytes=True)
    good, first = prefill(engine, random_tokens(70, seed=2))
    for byte in range(engine.layout.bytes_per_token_layer):
        host = good.copy()
        host.bytes[1, 1, 3, byte] ^= 0x10

        with pytest.raises(Broken):
            admit(engine, "t", host, first.token, room=5)


def test_the_error_names_layer_and_positions() -> None:
    engine = small_emulated()
    host, _ = prefill(engine, random_tokens(150, seed=3))
    host.bytes[1, 2, [4, 9]] = 0

    with pytest.raises(Broken, match="KV of layer 2 is not what was computed for 2 of the tokens 68 to 73"):
        forward(engine, [Item(host, [1])])


def test_bytes_behind_the_last_token_do_not_matter() -> None:
    engine = small_emulated()
    prompt = random_tokens(70, seed=4)
    host, first = prefill(engine, prompt)
    host.bytes[1, :, 6:] = 0xAB

    admit(engine, "t", host, first.token, room=5)

    assert [first.token, engine.decode_step(["t"])[0].token] == list(engine.recompute(prompt, 2)[0])


def test_layers_of_two_turns_in_one_block_are_broken() -> None:
    """Each layer is right in itself; together they are no turn's KV."""
    engine = small_emulated()
    host, first = prefill(engine, random_tokens(64, seed=5))
    other, _ = prefill(engine, random_tokens(64, seed=6))
    host.bytes[:, 2] = other.bytes[:, 2]

    with pytest.raises(Broken, match="of other tokens than layer 0"):
        admit(engine, "t", host, first.token, room=5)


def test_whole_kv_of_another_turn_gives_other_tokens() -> None:
    engine = small_emulated()
    prompt = random_tokens(64, seed=7)
    other, _ = prefill(engine, random_tokens(64, seed=8))

    sampled = forward(engine, [Item(other, [1])])[0]

    assert sampled is not None and sampled.token != engine.recompute([*prompt, 1], 1)[0][0]


def test_kv_of_another_model_is_broken() -> None:
    host, first = prefill(small_emulated(seed=1), random_tokens(64, seed=9))

    with pytest.raises(Broken):
        admit(small_emulated(seed=2), "t", host, first.token, room=5)


# ---- bytes


def test_a_row_begins_with_the_token_id_and_is_filled_to_its_last_byte() -> None:
    layout = BlockLayout(2, 64, 656)
    rows = KvPattern(layout).rows(np.array([7, 8], np.uint32), 5, 1)

    assert rows[:, 0].tolist() == [7, 8]
    assert rows.nbytes == 2 * 656
    assert len(np.unique(rows[:, 1:])) == 2 * 163


def test_one_token_in_all_layers_is_the_same_as_all_layers_of_one_token() -> None:
    pattern = KvPattern(BlockLayout(5, 64, 32), seed=3)

    together = pattern.token_rows(11, 130)

    apart = [pattern.rows(np.array([11], np.uint32), 130, layer)[0] for layer in range(5)]
    assert np.array_equal(together, np.array(apart))


@pytest.mark.parametrize("size", [4, 6, 10])
def test_rows_too_small_to_be_checked_are_rejected(size: int) -> None:
    with pytest.raises(Rejected, match=f"is {size}, wanted a multiple of 4, at least two"):
        EmulatedEngine(BlockLayout(2, 64, size))


@pytest.mark.parametrize("count", [0, 1, 2, FOLD_TOKENS_MAX, FOLD_TOKENS_MAX + 1, 3 * FOLD_TOKENS_MAX + 7])
def test_folding_many_ids_at_once_is_folding_one_by_one(count: int) -> None:
    ids = np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)
    wanted = 5
    for token in ids.tolist():
        wanted = (wanted * FOLD_FACTOR + token + FOLD_STEP) % (1 << 64)

    assert fold(5, ids) == wanted


# ---- time


def test_a_forward_sleeps_what_its_cost_says_layer_by_layer() -> None:
    slept: list[float] = []
    cost = EmulatedCost(prefill_s_per_token=1.0, prefill_s_per_token_pair=0.5, prefill_s_per_forward=10.0)
    engine = EmulatedEngine(BlockLayout(2, 64, 8), cost, sleep=slept.append)

    forward(engine, [Item(HostKv(engine.layout, 10), [1, 2]), Item(HostKv(engine.layout, 10), [1], is_last=False)])

    # 10 + 3 tokens + half of (1 + 2) + 1 visible pairs
    assert slept == [7.5, 7.5]


def test_cached_tokens_cost_pairs_and_nothing_else() -> None:
    cost = EmulatedCost(prefill_s_per_token=1.0, prefill_s_per_token_pair=0.5, prefill_s_per_forward=0.0)

    assert cost.layer_s([ForwardChunk((1, 2), 10, is_last=True)], num_layers=1) == 2 + 0.5 * (2 * 10 + 3)


def test_a_decode_step_costs_its_fixed_part_and_one_part_per_turn() -> None:
    slept: list[float] = []
    cost = EmulatedCost(decode_s_per_step=1.0, decode_s_per_turn=0.25)
    engine = EmulatedEngine(BlockLayout(2, 64, 8), cost, sleep=lambda _: None)
    host, first = prefill(engine, [1, 2, 3])
    for slot in "abc":
        admit(engine, slot, host, first.token, room=5)
    engine.sleep = slept.append

    engine.decode_step(["a", "b", "c"])
    engine.decode_step(["b"])

    assert slept == [1.75, 1.25]


def test_costs_are_not_negative() -> None:
    with pytest.raises(Rejected, match="decode_s_per_step is -1"):
        EmulatedCost(decode_s_per_step=-1.0)
