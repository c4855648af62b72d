"""Nemotron-4 and Minitron (arXiv:2402.16819, arXiv:2407.14679): layer norms with biases, an MLP without a gate, and a
squared ReLU.

Half of each head is rotated. Safetensors hold norm weights minus 1; see `weights/places.py`.
"""
