"""The scheduler with a shorter memory of ended turns: the real one, a quarter of an hour, is longer than most runs.

DUALPATH_CHAOS_RETENTION_S=120 python -P .../scheduler_main.py --listen ...
"""

import os
from functools import partial

from dualpath.scheduler import app
from dualpath.scheduler.command import main
from dualpath.scheduler.service.bounds import ServiceBounds

RETENTION = "DUALPATH_CHAOS_RETENTION_S"

if __name__ == "__main__":
    vars(app)["ServiceBounds"] = partial(ServiceBounds, retention_s=float(os.environ[RETENTION]))
    main()
