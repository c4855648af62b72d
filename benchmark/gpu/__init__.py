"""Checks and measures the cuda backend on a GPU: `make gpu-check`."""
