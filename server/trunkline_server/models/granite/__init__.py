"""Granite 3, dense and with experts: Llama with factors for embeddings, scores, the residual and logits; Granite 4."""
