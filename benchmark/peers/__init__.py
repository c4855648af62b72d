"""Trunkline side by side with other servers: same machine, same weights, same prompts. See ../README.md."""

import sys
from pathlib import Path

# The harness of the whole-system tests knows where the build and the embedded model are.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integration-tests"))
