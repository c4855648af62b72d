"""Triton kernels of the CUDA backend, one file an operation, each with a plain wrapper that launches it.

Rules of all: a row's bits depend on that row alone, so every sum has an order fixed by the weight's shape; nothing here
waits for the device, looks at its data or at the number of rows to choose an order; grids depend on shapes alone, so
that every launch can be captured. Kernels that compute the same thing are launched with `enable_fp_fusion=False`.
"""
