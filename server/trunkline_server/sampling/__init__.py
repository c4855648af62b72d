"""Chooses tokens from logits, in numpy. The reference backend uses this, and the kernels are compared to it."""
