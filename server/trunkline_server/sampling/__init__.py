"""Chooses tokens from logits, in numpy. The reference backend uses this, and the kernels are compared to it.

`sampler.py` chooses a token, `processors.py` has the effects of the parameters in the order of application, `philox.py`
the random numbers, `masks.py` the tokens that a grammar allows, and `watermark.py` the watermark with its detector. It
may use `backends/interface.py` and `errors`. docs/parts/sampling.md describes the order.

Begin with `sampler.py`.
"""
