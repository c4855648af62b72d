"""Choosing a token from logits, in numpy: what the reference backend does and the kernels are compared to."""
