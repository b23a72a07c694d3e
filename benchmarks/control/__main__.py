"""Entry of `python -m benchmarks.control`."""

import sys

from benchmarks.control.driver import main

sys.exit(main())
