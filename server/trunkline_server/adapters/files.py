"""The names of an adapter's files in PEFT's format."""

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
