"""For processes under libfaketime: its clock_nanosleep (0.9.10) refuses instants of a clock that it leaves alone, and
Python's sleep uses those. A select without files sleeps as well.
"""

import select
import time
from typing import SupportsIndex


def sleep(seconds: float | SupportsIndex, /) -> None:
    select.select((), (), (), max(0.0, float(seconds)))


time.sleep = sleep
