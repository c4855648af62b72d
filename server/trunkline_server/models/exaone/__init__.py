"""EXAONE 3, which is Llama with other names, and EXAONE 4 (arXiv:2507.11407): norms behind attention and MLP.

If EXAONE 4 has windows, only layers with one rotate.
"""
