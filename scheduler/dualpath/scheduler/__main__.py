"""Run the scheduler: `python -m dualpath.scheduler --listen 127.0.0.1:7700`."""

from dualpath.scheduler.command import main

main()
