"""Models as GGUF files: `trunkline quantize`."""
