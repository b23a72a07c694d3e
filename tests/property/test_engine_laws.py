"""Laws of compute engines over random prompts, chunkings and batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpath.model.errors import Broken
from engine_support import (
    KV_TOLERANCE,
    VOCAB_SIZE,
    Engine,
    HostKv,
    Item,
    admit,
    forward,
    generate,
    prefill,
    small_emulated,
    small_reference,
)
from strategies import examples

PROMPT_MAX = 150
tokens = st.integers(0, VOCAB_SIZE - 1)
prompts = st.lists(tokens, min_size=1, max_size=PROMPT_MAX)
engines = st.sampled_from([small_reference(), small_emulated()])
GENERATED = 6


@examples(0.4)
@given(engines, prompts, st.data())
def test_however_a_prompt_is_cut_tokens_equal_the_oracle(
    engine: Engine, prompt: list[int], data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(prompt) - 1), max_size=4)) if len(prompt) > 1 else set()
    engine.release("t")  # what a failed example left behind must not hide why it failed
    host, first = prefill(engine, prompt, cuts=sorted(cuts))

    generated = generate(engine, "t", host, first.token, GENERATED)

    assert tuple(generated) == engine.recompute(prompt, GENERATED)[0]
    assert engine.verify(prompt, generated).equal


@examples(0.2)
@given(engines, st.lists(prompts, min_size=1, max_size=4), st.data())
def test_who_shares_a_batch_changes_nothing(engine: Engine, batch: list[list[int]], data: st.DataObject) -> None:
    hosts = [HostKv(engine.layout, PROMPT_MAX) for _ in batch]
    heads = [data.draw(st.integers(0, len(prompt) - 1)) for prompt in batch]
    begun = [(host, prompt[:head]) for host, prompt, head in zip(hosts, batch, heads, strict=True) if head]
    if begun:
        forward(engine, [Item(host, head, is_last=False) for host, head in begun])

    sampled = forward(engine, [Item(host, p[host.tokens :]) for host, p in zip(hosts, batch, strict=True)])

    for slot, (host, one) in enumerate(zip(hosts, sampled, strict=True)):
        assert one is not None
        engine.release(str(slot))
        admit(engine, str(slot), host, one.token, room=GENERATED)
    found = [[one.token] for one in sampled if one is not None]
    for _ in range(GENERATED - 1):
        order = data.draw(st.permutations(range(len(batch))))
        for slot, one in zip(order, engine.decode_step([str(slot) for slot in order]), strict=True):
            found[slot].append(one.token)
    assert [tuple(one) for one in found] == [engine.recompute(prompt, GENERATED)[0] for prompt in batch]


@examples(0.2)
@given(engines, st.lists(tokens, min_size=1, max_size=100), st.integers(64, 130))
def test_blocks_that_decode_persists_are_those_of_a_prefill(engine: Engine, prompt: list[int], total: int) -> None:
    engine.release("t")
    host, first = prefill(engine, prompt)
    generated = generate(engine, "t", host, first.token, max(1, total - len(prompt)))
    whole = engine.layout.full_blocks_in(engine.kv_tokens("t"))
    wanted, _ = prefill(engine, [*prompt, *generated])

    for index in range(whole):
        block = bytearray(engine.layout.full_block_bytes)
        engine.copy_block("t", index, memoryview(block))
        expected = wanted.bytes[index].reshape(-1)
        if engine.dtype == "float32":
            found = np.frombuffer(block, np.float32)
            assert np.allclose(found, expected.view(np.float32), rtol=0, atol=KV_TOLERANCE)
        else:
            assert bytes(block) == expected.tobytes()


@examples(0.4)
@given(st.lists(tokens, min_size=65, max_size=PROMPT_MAX), st.data())
def test_no_changed_byte_of_emulated_kv_gets_through(prompt: list[int], data: st.DataObject) -> None:
    engine = small_emulated(check_bytes=True)
    host, first = prefill(engine, prompt)
    position = data.draw(st.integers(0, len(prompt) - 1))
    layer = data.draw(st.integers(0, engine.layout.num_layers - 1))
    byte = data.draw(st.integers(0, engine.layout.bytes_per_token_layer - 1))
    block, at = divmod(position, engine.layout.block_tokens)
    host.bytes[block, layer, at, byte] ^= data.draw(st.integers(1, 255))

    with pytest.raises(Broken):
        admit(engine, "t", host, first.token, room=1)
