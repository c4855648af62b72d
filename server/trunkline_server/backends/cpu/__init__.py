"""The CPU backend: traces a model once into a program of the Rust kernels, which one call per step replays."""
