"""InternLM 2 and 3: Llama with other names, and with keys of their own for biases."""
