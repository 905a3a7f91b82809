"""``python -m esper`` is the command ``esper``."""

import os
import sys

if not sys.flags.safe_path and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # python -m would import modules of the current folder, which may be anyone's

from esper.cli.main import main

sys.exit(main())
