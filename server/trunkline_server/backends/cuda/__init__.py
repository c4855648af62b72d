"""The CUDA backend: torch tensors, Triton kernels, captured steps."""
