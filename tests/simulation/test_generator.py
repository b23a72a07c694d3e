"""Generated sessions have the statistics of the paper's traces (§7)."""

import pytest

from dualpath.simulator.workload.generator import paper_sessions
from dualpath.simulator.workload.sessions import session_means

TABLE = {  # paper §7: turns, append, gen, total, context
    32768: (60, 608, 148, 28_639, 17_183),
    49152: (106, 474, 172, 42_607, 25_120),
    65536: (157, 429, 176, 55_958, 32_721),
}


@pytest.mark.parametrize("tokens_max", TABLE)
def test_the_generator_meets_the_papers_table_within_five_percent(tokens_max: int) -> None:
    means = session_means(paper_sessions(tokens_max, 500))

    ours = (means.turns, means.append, means.gen, means.total, means.context)
    assert ours == pytest.approx(TABLE[tokens_max], rel=0.05)
