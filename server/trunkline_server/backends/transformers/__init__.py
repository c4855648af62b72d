"""Serves any decoder that transformers knows, through torch."""
