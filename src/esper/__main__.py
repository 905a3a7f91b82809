"""``python -m esper`` is the command ``esper``."""

import sys

from esper.cli.main import main

sys.exit(main())
