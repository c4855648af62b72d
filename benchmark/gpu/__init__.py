"""What the cuda backend does on a GPU: `make gpu-check`."""
