"""Low-rank adapters (LoRA, arXiv:2106.09685): files of PEFT and llama.cpp in terms of the model's weights.

Begin with `open.py`.
"""
