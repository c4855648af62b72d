"""Serves any decoder that transformers knows, through torch.

`folder.py` reads a model with transformers without running code from its folder, `trial.py` tries it on two texts,
`attention.py` puts K and V into blocks behind transformers' interfaces, and `runner.py` runs the rows of a step. Steps
and sampling are those of the reference backend (`backends/reference/steps.py`).

Begin with `backend.py`, then `attention.py`.
"""
