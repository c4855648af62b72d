"""Reads weights of GGUF and safetensors files by name, memory-mapped and without torch."""
