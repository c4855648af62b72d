"""The reference backend: torch, f32, simple and slow. Tests compare the other backends with it.

`ops.py` implements `models.ops.Ops` one operation at a time, `backend.py` is the backend on it, and `steps.py` has what
other backends on torch share: sequences, chunks and sampling. `rounding.py` and `kv_pool.py` round K and V as the CPU
backend does. It uses numpy's sampler in `sampling` and nothing of other backends.

Begin with `steps.py`, then `backend.py` and `ops.py`.
"""
