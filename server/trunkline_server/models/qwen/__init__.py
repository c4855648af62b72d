"""Qwen: Qwen2 and Qwen2.5 (arXiv:2407.10671), Qwen3 (arXiv:2505.09388), each dense and with experts, and Qwen3-Next.

Qwen2 has biases on queries, keys and values only; Qwen3 normalises each query and key head. Later layers may have a
window. With Qwen2's and Qwen3-Next's experts, one more expert with a gate of its own serves all tokens.
"""
