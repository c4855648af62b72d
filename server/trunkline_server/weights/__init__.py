"""Reads weights of GGUF and safetensors files by name, memory-mapped and without torch.

`checkpoint.py` opens a model of either format; `gguf.py` and `safetensors.py` read the files. `tensor.py` is a weight
as it is stored, `dequantize.py` makes f32 of it, and `quantization.py` names the scheme of a quantised checkpoint.
`identity.py` and `fingerprint.py` name weights for caches. It may use `models` and the kernels, but no backend.

Begin with `checkpoint.py`.
"""
