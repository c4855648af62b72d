"""Entry point of `python -m trunkline_server`; see `cli.py`."""

from __future__ import annotations

import sys

from trunkline_server.cli import main

if __name__ == "__main__":
    sys.exit(main())
