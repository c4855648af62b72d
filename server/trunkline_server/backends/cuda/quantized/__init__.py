"""Weights that are kept in fewer bits, by scheme: what they are on the device, and how files become that."""
