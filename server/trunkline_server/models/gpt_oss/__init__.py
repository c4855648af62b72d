"""GPT-OSS (arXiv:2508.10925): experts, biases everywhere, attention sinks, and a window in every other layer."""
