"""Gemma (arXiv:2403.08295, arXiv:2408.00118, arXiv:2503.19786): scaled embeddings, and a gated MLP with GELU.

Every other layer of Gemma 2 has a sliding window, and scores and logits have soft caps. In Gemma 3, text only, five of
six layers have a window and their own rotary base, and RMSNorm on each query and key head replaces the caps of scores.
Safetensors hold norm weights minus 1; see `weights/places.py`.
"""
