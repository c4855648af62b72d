"""ModernBERT (arXiv:2412.13663): an encoder with rotary positions, most of whose layers have a window."""
