"""The two read paths of Fig. 4 as data, and where a layer's bytes lie."""

from dualpath.engine_agent.plan.paths import HitSource, layer_pieces, read_path, steps_of
from dualpath.model.layout import BlockLayout
from dualpath.model.turn import ReadSide

LAYOUT = BlockLayout(num_layers=2, block_tokens=4, bytes_per_token_layer=10)


def test_the_pe_path_sends_all_prompt_tokens_to_the_de() -> None:
    path = read_path(ReadSide.PE, hit_tokens=8, prompt_tokens=10)

    assert path.source is HitSource.PE_BUFFER
    assert (path.tokens_to_pe, path.tokens_to_de) == (0, 10)
    assert [step.labels for step in steps_of(path)] == ["1,2", "3,4", "5-7", "8,9"]


def test_the_de_path_sends_hits_to_the_pe_and_only_misses_back() -> None:
    path = read_path(ReadSide.DE, hit_tokens=8, prompt_tokens=10)

    assert path.source is HitSource.DE_BUFFER
    assert (path.tokens_to_pe, path.tokens_to_de) == (8, 2)
    assert [step.labels for step in steps_of(path)] == ["1,2", "3-5", "6,7", "8,9"]


def test_a_turn_without_hits_reads_nothing_on_either_side() -> None:
    path = read_path(ReadSide.DE, hit_tokens=0, prompt_tokens=10)

    assert path.source is HitSource.NONE
    assert [step.origin for step in steps_of(path)] == ["pe_hbm", "de_buffer"]


def test_pieces_of_a_layer_skip_the_other_layers() -> None:
    # block 0 layer 1 starts at 40, block 1 layer 1 at 120; a layer block has 40 bytes
    assert layer_pieces(LAYOUT, layer=1, first=0, tokens=8) == ((40, 40), (120, 40))


def test_pieces_may_start_and_end_inside_a_block() -> None:
    assert layer_pieces(LAYOUT, layer=0, first=3, tokens=2) == ((30, 10), (80, 10))


def test_the_pieces_of_all_layers_cover_the_region_once() -> None:
    spans = sorted(p for layer in range(2) for p in layer_pieces(LAYOUT, layer=layer, first=0, tokens=12))

    assert [start for start, _ in spans] == list(range(0, 3 * LAYOUT.full_block_bytes, 40))
    assert sum(length for _, length in spans) == 3 * LAYOUT.full_block_bytes
