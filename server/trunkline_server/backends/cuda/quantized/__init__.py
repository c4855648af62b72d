"""Quantised weights by scheme: their form on the device, and the conversion from files."""
