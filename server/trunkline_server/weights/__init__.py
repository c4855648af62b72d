"""Weights: reading GGUF and safetensors, memory-mapped, by name. No torch."""
