"""One file an operation: Triton kernels and the wrapper that launches them.

A wrapper never waits for the device and never looks at what is on it; its grid depends on shapes alone, so that a
launch can be captured in a CUDA graph. The order of a reduction depends on a weight's shape or on a position, never on
how many rows a step has.
"""
