"""Models as GGUF files: `trunkline quantize`.

`quantize.py` is the command. It reads and quantises a model with `weights` and writes the file with `gguf_writer.py`;
`config_keys.py` and `tokenizer_keys.py` write its metadata. It uses no backend, and nothing of a running server uses
it.

Begin with `quantize.py`.
"""
