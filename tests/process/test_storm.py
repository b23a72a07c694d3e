"""A small kill storm (`make storm` is the large one): 300 turns while scheduler, an agent and Redis are killed."""

from pathlib import Path

import pytest

from chaos.storm import Storm, StormOptions


@pytest.mark.slow
async def test_turns_are_answered_once_while_everything_is_killed(tmp_path: Path) -> None:
    storm = Storm(StormOptions(turns=300, seconds=6.0), tmp_path)

    await storm.run()

    failures = {name: found.failures for name, found in storm.report.properties.items() if found.failures}
    assert not failures
    assert sum(storm.kills.values()) == 3
    assert len(storm.results) == 300
