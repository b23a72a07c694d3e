"""Entry of `python -m tests.chaos`: faults on real processes."""

import sys

from .episodes import main

sys.exit(main())
