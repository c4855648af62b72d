"""The backends: each runs a model's steps on one kind of device.

`interface.py` declares what the engine calls and `registry.py` builds a backend by its name. `cpu` runs the Rust
kernels, `cuda` torch and Triton, `reference` torch in f32, and `transformers` the models of that package. A backend
uses the files beside it here, which are shared, and `models`, `weights` and `sampling`, but no other backend; only
`transformers` builds on `reference`. Nothing here knows the service or the engine.

Begin with `interface.py`, then `reference/backend.py`, which is the simplest, and `cpu/backend.py`.
"""
