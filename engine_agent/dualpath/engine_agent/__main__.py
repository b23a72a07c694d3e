"""Run one agent: `python -m dualpath.engine_agent --role prefill --node-id p0 --group-id prefill-0`."""

from dualpath.engine_agent.command import main

main()
