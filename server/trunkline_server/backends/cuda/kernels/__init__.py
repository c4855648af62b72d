"""One file per operation: Triton kernels and the function that launches them.

A launch never waits for the device and never reads data on it. Its grid depends only on shapes, so it can be captured
in a CUDA graph. The order of a reduction depends on a weight's shape or on a position, never on the number of rows in a
step.
"""
