"""Phi-3 (arXiv:2404.14219) to Phi-4: Llama with joined matrices."""
