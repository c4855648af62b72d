"""The CPU backend: traces a model once into a program of the Rust kernels, which one call per step replays.

`ops.py` implements `models.ops.Ops` by recording, `build.py` loads weights and makes the program, and `backend.py`
passes each step to the executor in `kernels/`, which does the work without the interpreter's lock. The other files
plan memory and keep packed weights and the store. It uses `trunkline_server._kernels` and never torch.

Begin with `backend.py`, then `build.py`. docs/parts/kernels.md describes what happens below.
"""
