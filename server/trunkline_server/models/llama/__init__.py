"""Llama 2 and 3 (arXiv:2307.09288, arXiv:2407.21783), and models that differ from it only in keys of their config.

Mistral (arXiv:2310.06825) may have a sliding window. Mixtral (arXiv:2401.04088) is Mistral with experts. Some layers of
SmolLM3, by default every fourth, do not rotate (arXiv:2501.18795).
"""
