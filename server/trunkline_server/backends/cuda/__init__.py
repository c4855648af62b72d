"""The CUDA backend: torch for memory and graphs, Triton for every kernel. docs/gpu.md lists its requirements."""
