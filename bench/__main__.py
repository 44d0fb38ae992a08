"""``python -m bench`` runs ``bench.run``."""

import sys

from bench.run import main

sys.exit(main())
