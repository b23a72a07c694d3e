"""What every compute engine does alike: layerwise prefill over cached blocks, continuous decode, clear refusals."""

from collections.abc import Callable

import numpy as np
import pytest

from dualpath.engine_agent.ports import ForwardChunk
from dualpath.model.errors import BlockSizeError, Rejected
from dualpath.model.layout import BLOCK_TOKENS
from engine_support import (
    KV_TOLERANCE,
    LOGITS_TOLERANCE,
    TOKENS_MAX,
    VOCAB_SIZE,
    Engine,
    HostKv,
    Item,
    admit,
    forward,
    generate,
    prefill,
    random_tokens,
    small_emulated,
    small_reference,
)

MAKERS: dict[str, Callable[..., Engine]] = {"reference": small_reference, "emulated": small_emulated}


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Callable[..., Engine]:
    return MAKERS[request.param]


@pytest.fixture
def engine(make: Callable[..., Engine]) -> Engine:
    return make()


def assert_same_kv(engine: Engine, found: HostKv, wanted: HostKv) -> None:
    """Exact for made-up bytes; within rounding for floats, which depend on the shapes of the products."""
    assert found.tokens == wanted.tokens
    for layer in range(engine.layout.num_layers):
        if engine.dtype == "float32":
            close = np.allclose(
                found.rows(layer).view(np.float32), wanted.rows(layer).view(np.float32), rtol=0, atol=KV_TOLERANCE
            )
            assert close, f"layer {layer}"
        else:
            assert np.array_equal(found.rows(layer), wanted.rows(layer)), f"layer {layer}"


# ---- prefill


@pytest.mark.parametrize("hit_tokens", [64, 128, 192])
def test_prefill_over_cached_blocks_equals_a_full_recompute(engine: Engine, hit_tokens: int) -> None:
    prompt = random_tokens(200, seed=1)
    tokens, logits = engine.recompute(prompt, 1)

    _, sampled = prefill(engine, prompt, cuts=[hit_tokens])

    assert sampled.token == tokens[0]
    if logits:
        assert sampled.logits is not None
        assert np.allclose(sampled.logits, logits[0], rtol=0, atol=LOGITS_TOLERANCE)


@pytest.mark.parametrize("cuts", [(1,), (63, 64, 65), (64, 128), (50, 100, 150, 199)])
def test_chunked_prefill_equals_unchunked(engine: Engine, cuts: tuple[int, ...]) -> None:
    prompt = random_tokens(200, seed=2)
    whole, at_once = prefill(engine, prompt)

    chunked, last = prefill(engine, prompt, cuts=cuts)

    assert last.token == at_once.token
    assert_same_kv(engine, chunked, whole)


def test_only_the_chunk_that_ends_its_prompt_gives_a_token(engine: Engine) -> None:
    items = [
        Item(HostKv(engine.layout, 30), random_tokens(20, seed=3), is_last=False),
        Item(HostKv(engine.layout, 30), random_tokens(20, seed=4)),
    ]

    first, second = forward(engine, items)

    assert first is None
    assert second is not None and 0 <= second.token < engine.vocab_size


def test_a_batch_of_turns_gives_each_what_it_gets_alone(engine: Engine) -> None:
    prompts = [random_tokens(count, seed=count) for count in (1, 64, 90, 150)]
    alone = [prefill(engine, prompt) for prompt in prompts]
    hosts = [HostKv(engine.layout, 200) for _ in prompts]
    forward(engine, [Item(host, prompt[:-1], False) for host, prompt in zip(hosts[1:], prompts[1:], strict=True)])

    sampled = forward(engine, [Item(host, p[host.tokens :]) for host, p in zip(hosts, prompts, strict=True)])

    for host, one, (host_alone, one_alone) in zip(hosts, sampled, alone, strict=True):
        assert one is not None and one.token == one_alone.token
        assert_same_kv(engine, host, host_alone)


def test_a_forward_given_up_on_the_way_gives_no_tokens_and_disturbs_no_other(engine: Engine) -> None:
    prompt = random_tokens(70, seed=5)
    abandoned = engine.begin_forward([ForwardChunk(tuple(prompt), 0, is_last=True)])
    engine.forward_layer(abandoned, 0, [[]])

    _, sampled = prefill(engine, prompt)

    assert engine.end_forward(abandoned) == [None]
    assert sampled.token == engine.recompute(prompt, 1)[0][0]


def test_new_kv_is_one_contiguous_buffer_of_the_new_tokens_alone(engine: Engine) -> None:
    batch = engine.begin_forward([ForwardChunk((1, 2, 3), 0, is_last=True)])

    (kv,) = engine.forward_layer(batch, 0, [[]])

    assert kv.c_contiguous
    assert kv.nbytes == 3 * engine.layout.bytes_per_token_layer


# ---- decode


def test_decode_equals_the_oracle(engine: Engine) -> None:
    prompt = random_tokens(100, seed=6)
    host, first = prefill(engine, prompt, cuts=[64])

    generated = generate(engine, "t", host, first.token, 40)

    assert tuple(generated) == engine.recompute(prompt, 40)[0]


def test_decode_keeps_its_logits_near_those_of_the_oracle() -> None:
    engine = small_reference()
    prompt = random_tokens(100, seed=6)
    host, first = prefill(engine, prompt)
    admit(engine, "t", host, first.token, room=20)

    found = [engine.decode_step(["t"])[0].logits for _ in range(19)]

    _, wanted = engine.recompute(prompt, 20)
    assert np.allclose(np.array(found), np.array(wanted[1:]), rtol=0, atol=LOGITS_TOLERANCE)


def test_turns_that_join_and_leave_a_decode_batch_get_what_they_get_alone(engine: Engine) -> None:
    prompts = {name: random_tokens(count, seed=count) for name, count in (("a", 10), ("b", 64), ("c", 130))}
    wanted = {name: engine.recompute(prompt, 12)[0] for name, prompt in prompts.items()}
    found: dict[str, list[int]] = {}
    hosts: dict[str, HostKv] = {}
    for name, prompt in prompts.items():
        hosts[name], sampled = prefill(engine, prompt)
        found[name] = [sampled.token]
        admit(engine, name, hosts[name], sampled.token, room=12)

    # a alone, then with b, then all three in another order, then b and c
    for batch in [["a"]] * 3 + [["a", "b"]] * 3 + [["c", "a", "b"]] * 5 + [["b", "c"]] * 3 + [["c"]] * 3:
        for name, one in zip(batch, engine.decode_step(batch), strict=True):
            found[name].append(one.token)

    assert {name: tuple(tokens) for name, tokens in found.items()} == {name: wanted[name] for name in found}


def test_a_second_turn_over_persisted_blocks_equals_the_oracle(engine: Engine) -> None:
    prompt = random_tokens(100, seed=8)
    host, first = prefill(engine, prompt)
    generated = generate(engine, "t", host, first.token, 40)
    context = prompt + generated
    whole = engine.layout.full_blocks_in(engine.kv_tokens("t"))
    stored = HostKv(engine.layout, 200)
    for index in range(whole):
        engine.copy_block("t", index, stored.bytes[index].reshape(-1).data)
    stored.tokens = whole * BLOCK_TOKENS
    second_prompt = context + random_tokens(20, seed=9)

    sampled = forward(engine, [Item(stored, second_prompt[stored.tokens :])])[0]

    assert whole == 2
    assert sampled is not None and sampled.token == engine.recompute(second_prompt, 1)[0][0]


def test_kv_written_by_decode_is_the_kv_that_prefill_computes_for_the_same_tokens(engine: Engine) -> None:
    prompt = random_tokens(50, seed=10)
    host, first = prefill(engine, prompt)
    generated = generate(engine, "t", host, first.token, 100)
    copied = HostKv(engine.layout, 128)
    for index in range(2):
        engine.copy_block("t", index, copied.bytes[index].reshape(-1).data)
    copied.tokens = 128

    wanted, _ = prefill(engine, (prompt + generated)[:128])

    assert_same_kv(engine, copied, wanted)


def test_kv_tokens_rise_by_one_with_each_step(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(70, seed=11))
    admit(engine, "t", host, first.token, room=3)

    counts = [engine.kv_tokens("t")]
    for _ in range(3):
        engine.decode_step(["t"])
        counts.append(engine.kv_tokens("t"))

    assert counts == [70, 71, 72, 73]


def test_a_step_of_nothing_is_nothing(engine: Engine) -> None:
    assert engine.decode_step([]) == []


def test_admitting_copies_so_that_the_buffer_can_be_reused(engine: Engine) -> None:
    prompt = random_tokens(100, seed=12)
    host, first = prefill(engine, prompt)
    admit(engine, "t", host, first.token, room=5)
    host.bytes[:] = 0xFF

    generated = [first.token] + [engine.decode_step(["t"])[0].token for _ in range(4)]

    assert tuple(generated) == engine.recompute(prompt, 5)[0]


# ---- oracle


def test_verify_finds_the_token_that_differs(engine: Engine) -> None:
    prompt = random_tokens(60, seed=13)
    right = list(engine.recompute(prompt, 10)[0])
    wrong = [*right[:6], (right[6] + 1) % engine.vocab_size, *right[7:]]

    good, bad = engine.verify(prompt, right), engine.verify(prompt, wrong)

    assert (good.equal, good.tokens_checked, good.first_mismatch) == (True, 10, None)
    assert (bad.equal, bad.first_mismatch) == (False, 6)
    assert good.smallest_margin > LOGITS_TOLERANCE


def test_verify_of_another_prompt_fails(engine: Engine) -> None:
    prompt = random_tokens(60, seed=14)
    generated = engine.recompute(prompt, 10)[0]

    assert not engine.verify([*prompt[:-1], (prompt[-1] + 1) % engine.vocab_size], generated).equal


def test_the_oracle_stops_at_a_stop_token(engine: Engine) -> None:
    prompt = random_tokens(60, seed=15)
    free = engine.recompute(prompt, 10)[0]

    stopped, _ = engine.recompute(prompt, 10, stop_tokens=[free[3]])

    assert stopped == free[: free.index(free[3]) + 1]


def test_nothing_generated_is_nothing_to_check(engine: Engine) -> None:
    verdict = engine.verify([1, 2, 3], [])

    assert (verdict.equal, verdict.tokens_checked) == (True, 0)


@pytest.mark.parametrize("generated", [[], [1], [1, 2]])
def test_an_empty_prompt_has_no_oracle(engine: Engine, generated: list[int]) -> None:
    if generated:
        with pytest.raises(Rejected):
            engine.verify([], generated)
    with pytest.raises(Rejected):
        engine.recompute([], 1)


def test_another_seed_is_another_model_with_other_tokens_and_another_name(make: Callable[..., Engine]) -> None:
    one, other = make(seed=1), make(seed=2)
    prompt = random_tokens(60, seed=16)

    assert one.recompute(prompt, 5)[0] != other.recompute(prompt, 5)[0]
    assert one.model_revision != other.model_revision


# ---- refusals


def test_releasing_twice_or_an_unknown_slot_is_fine(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=17))
    admit(engine, "t", host, first.token, room=5)

    engine.release("t")
    engine.release("t")
    engine.release("never there")

    admit(engine, "t", host, first.token, room=5)
    assert engine.kv_tokens("t") == 10


def test_an_unknown_slot_is_named(engine: Engine) -> None:
    into = memoryview(bytearray(engine.layout.full_block_bytes))
    for call in (
        lambda: engine.decode_step(["ghost"]),
        lambda: engine.kv_tokens("ghost"),
        lambda: engine.copy_block("ghost", 0, into),
    ):
        with pytest.raises(Rejected, match="slot ghost is not admitted") as raised:
            call()
        assert raised.value.reason == "UNKNOWN_SLOT"


def test_an_unknown_slot_in_a_batch_leaves_the_others_where_they_were(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=18))
    admit(engine, "t", host, first.token, room=5)

    with pytest.raises(Rejected):
        engine.decode_step(["t", "ghost"])

    assert engine.kv_tokens("t") == 10


def test_a_slot_named_twice_in_a_step_is_rejected(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=18))
    admit(engine, "t", host, first.token, room=5)

    with pytest.raises(Rejected, match="twice"):
        engine.decode_step(["t", "t"])


def test_a_slot_cannot_be_admitted_over_another(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=19))
    admit(engine, "t", host, first.token, room=5)

    with pytest.raises(Rejected) as raised:
        admit(engine, "t", host, first.token, room=5)

    assert raised.value.reason == "SLOT_TAKEN"


def test_a_full_slot_takes_no_further_step(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=20))
    admit(engine, "t", host, first.token, room=2)
    engine.decode_step(["t"])
    engine.decode_step(["t"])

    with pytest.raises(Rejected) as raised:
        engine.decode_step(["t"])

    assert raised.value.reason == "SLOT_FULL"


def test_a_layer_block_of_another_size_is_refused_with_both_numbers(engine: Engine) -> None:
    host, _ = prefill(engine, random_tokens(64, seed=21))
    short = host.layer_blocks(0)[0][:-4]
    batch = engine.begin_forward([ForwardChunk((1,), 64, is_last=True)])

    with pytest.raises(BlockSizeError, match=f"{short.nbytes} bytes, layout wants {engine.layout.layer_block_bytes}"):
        engine.forward_layer(batch, 0, [[short]])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_and_too_many_blocks_are_refused(engine: Engine, count: int) -> None:
    host, first = prefill(engine, random_tokens(128, seed=22))
    blocks = (host.layer_blocks(0) * 2)[:count]
    full = (host.full_blocks() * 2)[:count]
    batch = engine.begin_forward([ForwardChunk((1,), 128, is_last=True)])

    with pytest.raises(BlockSizeError):
        engine.forward_layer(batch, 0, [blocks])
    with pytest.raises(BlockSizeError):
        engine.admit("t", full, 128, 200, first.token)


def test_a_full_block_of_another_size_is_refused(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(64, seed=23))
    block = host.full_blocks()[0]

    with pytest.raises(BlockSizeError):
        engine.admit("t", [block[:-4]], 64, 100, first.token)
    admit(engine, "t", host, first.token, room=5)
    with pytest.raises(BlockSizeError):
        engine.copy_block("t", 0, memoryview(bytearray(block.nbytes + 4)))


@pytest.mark.parametrize("index", [-1, 1, 2])
def test_a_block_that_is_not_full_yet_is_not_copied(engine: Engine, index: int) -> None:
    host, first = prefill(engine, random_tokens(127, seed=24))
    admit(engine, "t", host, first.token, room=5)

    with pytest.raises(Rejected, match="1 whole blocks"):
        engine.copy_block("t", index, memoryview(bytearray(engine.layout.full_block_bytes)))


def test_a_context_longer_than_the_model_takes_is_rejected_with_the_limit(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=25))

    with pytest.raises(Rejected, match=f"{TOKENS_MAX + 1} tokens, the model takes {TOKENS_MAX}"):
        engine.begin_forward([ForwardChunk((1, 2), TOKENS_MAX - 1, is_last=True)])
    with pytest.raises(Rejected, match=f"the model takes {TOKENS_MAX}"):
        engine.admit("t", host.full_blocks(), 10, TOKENS_MAX + 1, first.token)


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_a_token_outside_the_vocabulary_is_rejected(engine: Engine, token: int) -> None:
    host, _ = prefill(engine, random_tokens(10, seed=26))
    for call in (
        lambda: engine.begin_forward([ForwardChunk((1, token), 0, is_last=True)]),
        lambda: engine.admit("t", host.full_blocks(), 10, 20, token),
        lambda: engine.verify([1, token], [1]),
        lambda: engine.verify([1], [1, token]),
    ):
        with pytest.raises(Rejected, match="outside the vocabulary"):
            call()


def test_forwards_of_nothing_are_rejected(engine: Engine) -> None:
    for chunks in ([], [ForwardChunk((), 0, is_last=True)], [ForwardChunk((1,), -1, is_last=True)]):
        with pytest.raises(Rejected):
            engine.begin_forward(chunks)


def test_a_prompt_that_leaves_no_room_to_decode_is_not_admitted(engine: Engine) -> None:
    host, first = prefill(engine, random_tokens(10, seed=27))

    with pytest.raises(Rejected, match="no room"):
        engine.admit("t", host.full_blocks(), 10, 10, first.token)
    with pytest.raises(Rejected):
        engine.admit("t", [], 0, 10, first.token)


def test_layers_come_in_order(engine: Engine) -> None:
    batch = engine.begin_forward([ForwardChunk((1,), 0, is_last=True)])

    with pytest.raises(Rejected, match="layer 1 asked for, wanted 0"):
        engine.forward_layer(batch, 1, [[]])
    for layer in range(engine.layout.num_layers):
        engine.forward_layer(batch, layer, [[]])
    with pytest.raises(Rejected, match="all 3 are computed"):
        engine.forward_layer(batch, 3, [[]])


def test_cached_kv_of_another_number_of_chunks_is_rejected(engine: Engine) -> None:
    batch = engine.begin_forward([ForwardChunk((1,), 0, is_last=True)])

    with pytest.raises(Rejected, match="cached KV of 2 chunks, wanted 1"):
        engine.forward_layer(batch, 0, [[], []])
