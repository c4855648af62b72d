"""Writes a Llama GGUF as a bf16 safetensors folder with its tokenizer and chat template.

python convert_gguf.py FILE.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

# Fields added by the GGUF reader, which the written config must not have.
NOT_OURS = ("quantization_config", "_name_or_path", "transformers_version", "model_type")


def main():
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = {k: v for k, v in read.config.to_dict().items() if k not in NOT_OURS} | {"dtype": "bfloat16"}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
