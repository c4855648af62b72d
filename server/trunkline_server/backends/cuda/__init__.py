"""The CUDA backend: torch for memory and graphs, Triton for every kernel. docs/gpu.md lists its requirements.

`backend.py` keeps sequences and steps, `runner.py` pads a step to a captured shape and replays its graph, `ops.py`
implements `models.ops.Ops` with the kernels in `kernels/`, and `sampling.py` samples on the device. `loading.py` and
`quantized/` bring weights onto it, `adapters.py` keeps loaded adapters there, and `tiers.py` moves blocks to pinned
memory and disk. `device.py` has the device functions besides kernels.

Begin with `backend.py`, then `runner.py` and `ops.py`.
"""
