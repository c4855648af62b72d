"""StarCoder2 (arXiv:2402.19173): layer norms, biases everywhere, and an MLP without a gate."""
