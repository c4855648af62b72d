"""Compares Trunkline with other servers on the same machine, weights and prompts. See ../README.md."""

import sys
from pathlib import Path

# The system tests' harness locates the build and the embedded model.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integration-tests"))
