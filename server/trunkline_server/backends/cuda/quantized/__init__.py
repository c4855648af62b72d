"""Quantised weights by scheme: their form on the device, and the conversion from files.

Each kind of weight is a class with the arrays that its products in `../kernels/linear.py` read. `grouped.py` has
weights with a scale for each group of inputs and `scaled.py` those with one for each row; `gguf.py` and
`checkpoints.py` convert the files' formats, and `stack.py` joins weights of one input. It may use `weights` and the
kernels of this backend.

Begin with `grouped.py`.
"""
