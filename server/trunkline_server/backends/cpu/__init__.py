"""The CPU backend: a model traced once into a program of the Rust kernels, replayed by one call a step. No torch."""
