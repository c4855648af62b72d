"""The architectures: what a model computes, in terms of `Ops`.

`config.py` is a model's shape as its files state it, `ops.py` declares the operations, `decoder.py` is the decoder that
most architectures are, and `head.py` the end of every model. A family is a folder with `config.py` (its keys in model
files) and, where it differs from what all share, `places.py` (where its weights are) and `forward.py`; `registry.py`
finds it by the architecture's name. Models may use only this package and `errors`: they know no backend and open no
file.

Begin with `ops.py` and `decoder.py`, then a family such as `llama`.
"""
