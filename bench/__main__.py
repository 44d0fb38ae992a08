"""``python -m bench``: see ``run``."""

import sys

from bench.run import main

sys.exit(main())
