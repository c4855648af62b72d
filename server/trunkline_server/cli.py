"""Command line of a shard: `serve`, `resolve`, `quantize` and others, described in docs/parts/launcher.md.

A user's mistake prints one line `error: ...` on stderr and exits with code 2. Each command imports only the modules
that it needs, which keeps its start short.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from trunkline_server import logs
from trunkline_server.errors import InvalidArgument, UserError

EXIT_CODE_USER_MISTAKE = 2

BACKENDS = ("cpu", "cuda", "reference", "transformers")
NUMERICS = ("exact", "fast")
KV_CACHE_DTYPES = ("auto", "fp8", "int8", "int4", "f16", "bf16")
KV_WINDOWS = ("auto", "off")
POOLING = ("auto", "none", "last", "mean")
QUANTIZE = ("none", "int8", "int4", "fp8", "nf4", "bitsandbytes", "bitsandbytes-nf4", "eetq", "awq", "gptq")
PINNINGS = ("auto", "on", "off")
CACHE_OFF = "off"
MAX_THREADS = 1024
MAX_STEP_TOKENS = 1 << 16
MAX_STEP_SEQUENCES = 1 << 12
MAX_BATCH_TOTAL_TOKENS = 1 << 31
MAX_LANE = 1023
MAX_KV_DISK_BYTES = 1 << 50
DEFAULT_KV_DISK_BYTES = 10 << 30
_LIBRARY = ("list", "show", "rm")
SIZE_UNITS = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class _Parser(argparse.ArgumentParser):
    """Raises `InvalidArgument` instead of printing the usage text, so that a wrong flag is reported in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(message, hint=f"see `{self.prog} --help`")


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. arguments: None reads `sys.argv`."""
    try:
        options = _parser().parse_args(arguments)
        if options.command == "resolve":
            return _resolve(options)
        if options.command in _LIBRARY:
            return _library(options)
        if options.command == "quantize":
            return _quantize(options)
        if options.command == "watermark":
            return _watermark(options)
        from trunkline_server.serve import serve

        logs.configure(options.log_level, log_format=options.log_format).report_periods()
        return serve(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_CODE_USER_MISTAKE


def _resolve(options: argparse.Namespace) -> int:
    from trunkline_server import hub

    try:
        resolved = hub.resolve(options.model, revision=options.revision)
    except KeyboardInterrupt:
        return 130
    line = {"path": str(resolved.path), "model_id": resolved.model_id, "revision": resolved.revision}
    print(json.dumps(line), flush=True)  # noqa: T201
    return 0


def _quantize(options: argparse.Namespace) -> int:
    from pathlib import Path

    from trunkline_server.export.quantize import quantize_model

    try:
        line = quantize_model(options.model, Path(options.out), options.type, options.revision)
    except OSError as error:
        raise InvalidArgument(f"cannot write `{options.out}`: {error.strerror or error}") from error
    except KeyboardInterrupt:
        return 130
    print(line, flush=True)  # noqa: T201
    return 0


def _library(options: argparse.Namespace) -> int:
    from trunkline_server import library

    if options.command == "list":
        lines = library.listed()
    elif options.command == "rm":
        lines = [library.removed(options.model)]
    else:
        lines = library.shown(options.model, options.revision)
    print("\n".join(lines), flush=True)  # noqa: T201
    return 0


def _watermark(options: argparse.Namespace) -> int:
    from trunkline_server.sampling import watermark_cli

    report = watermark_cli.report(sys.stdin.buffer, options.key_file, options.gamma)
    print(json.dumps(report), flush=True)  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m trunkline_server", description="Run a Trunkline shard, or one of its tools.", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_resolve(commands)
    _add_library(commands)
    _add_quantize(commands)
    _add_watermark(commands)
    return parser


def _add_serve(commands: _Commands) -> None:
    serve = commands.add_parser("serve", help="load a model and answer the router on a socket", allow_abbrev=False)
    serve.add_argument("--model", required=True, metavar="PATH", help="a .gguf file or a folder with config.json")
    serve.add_argument("--socket", required=True, metavar="PATH", help="Unix socket to listen on")
    serve.add_argument("--backend", choices=BACKENDS, default="cpu", help="default: cpu")
    serve.add_argument(
        "--numerics",
        choices=NUMERICS,
        default="exact",
        help="for the cuda backend: exact keeps a reply's bits independent of the rest of the batch, fast does not; "
        "default: exact",
    )
    serve.add_argument(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default="auto",
        help="how K and V are stored; default: auto, which is int8 on cpu and the dtype of the weights on cuda",
    )
    serve.add_argument(
        "--kv-windows",
        choices=KV_WINDOWS,
        default="auto",
        help="auto: sliding-window layers keep little more than their window if that saves memory; off: they keep all",
    )
    serve.add_argument(
        "--threads",
        type=_WholeNumber(MAX_THREADS),
        metavar="N",
        help="number of compute threads; default: one per usable core",
    )
    serve.add_argument(
        "--pin-threads",
        choices=PINNINGS,
        default="auto",
        help="pin each compute thread to a core of its own; default: auto, if they use every core and no quota applies",
    )
    serve.add_argument(
        "--max-batch-total-tokens",
        type=_WholeNumber(MAX_BATCH_TOTAL_TOKENS),
        metavar="N",
        help="capacity of the KV pool in tokens; default: 131072, at most a quarter of the available memory",
    )
    serve.add_argument(
        "--max-step-tokens", type=_WholeNumber(MAX_STEP_TOKENS), metavar="N", help="most tokens in a step"
    )
    serve.add_argument(
        "--max-step-sequences", type=_WholeNumber(MAX_STEP_SEQUENCES), metavar="N", help="most sequences in a step"
    )
    _add_weights(serve)
    _add_kv_tiers(serve)
    serve.add_argument("--log-format", choices=logs.FORMATS, default="text", help="default: text")
    serve.add_argument("--log-level", choices=logs.LEVELS, default="info", help="default: info")
    serve.add_argument("--lifeline", action="store_true", help="exit at once when standard input closes")


def _add_weights(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--weights-cache",
        metavar="DIR",
        help=f"folder for packed weights, or `{CACHE_OFF}`; default: trunkline/weights in the user's cache folder",
    )
    serve.add_argument(
        "--quantize",
        choices=QUANTIZE,
        default=QUANTIZE[0],
        help="quantise the weights of an unquantised checkpoint while it is loaded; fp8 is for the cuda backend and "
        "int8 elsewhere; bitsandbytes and eetq mean int8, nf4 and bitsandbytes-nf4 int4; gptq and awq check that the "
        "checkpoint is quantised so",
    )
    serve.add_argument(
        "--pooling",
        choices=POOLING,
        default=POOLING[0],
        help="position whose output is the embedding of a text, or the mean of all; default: as the model's files say",
    )
    serve.add_argument(
        "--speculative-model",
        metavar="MODEL",
        help="folder or .gguf file of a smaller model with the same vocabulary, which drafts tokens (cpu backend)",
    )


def _add_resolve(commands: _Commands) -> None:
    resolve = commands.add_parser(
        "resolve", help="find or download a model and print its path as one JSON line", allow_abbrev=False
    )
    resolve.add_argument(
        "model", nargs="?", metavar="MODEL", help="Hub id, folder or .gguf file; default: the embedded model"
    )
    resolve.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub repository")


def _add_library(commands: _Commands) -> None:
    commands.add_parser("list", help="list the downloaded models", allow_abbrev=False)
    show = commands.add_parser("show", help="describe a model on this machine", allow_abbrev=False)
    show.add_argument("model", nargs="?", metavar="MODEL", help="as for `resolve`")
    show.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub repository")
    remove = commands.add_parser("rm", help="delete a downloaded repository", allow_abbrev=False)
    remove.add_argument("model", metavar="MODEL", help="Hub id")


def _add_quantize(commands: _Commands) -> None:
    quantize = commands.add_parser(
        "quantize", help="write an unquantised model as a GGUF file with quantised weights", allow_abbrev=False
    )
    quantize.add_argument("model", metavar="MODEL", help="as for `resolve`")
    quantize.add_argument("out", metavar="OUT.gguf", help="the file to write, which must not exist")
    quantize.add_argument(
        "--type", choices=QUANTIZE[1:3], default=QUANTIZE[1], help=f"format of matrices; default: {QUANTIZE[1]}"
    )
    quantize.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub repository")


def _add_watermark(commands: _Commands) -> None:
    watermark = commands.add_parser(
        "watermark",
        help="read the tokens of a text as JSON from standard input (the format of `/tokenize`) and print how strongly "
        "they carry the server's watermark, as one JSON line",
        allow_abbrev=False,
    )
    watermark.add_argument("--gamma", type=_gamma, default=0.5, help="the server's `--watermark-gamma`; default: 0.5")
    watermark.add_argument(
        "--key-file",
        metavar="FILE",
        help="the server's `--watermark-key-file`; default: the key in TRUNKLINE_WATERMARK_KEY, or TGI's key",
    )


def _add_kv_tiers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-disk-path",
        metavar="DIR",
        help="folder for KV blocks on disk, which survive a restart; default: blocks are kept in memory only",
    )
    parser.add_argument(
        "--kv-disk-size",
        type=_size,
        metavar="SIZE",
        help="most bytes to use in that folder, such as `10GiB`; default: 10GiB",
    )
    parser.add_argument(
        "--kv-disk-optional",
        action="store_true",
        help="if that folder cannot be used, warn and keep blocks in memory only, instead of ending",
    )
    parser.add_argument(
        "--lane",
        type=_WholeNumber(MAX_LANE, least=0),
        default=0,
        metavar="N",
        help="number of this shard among those of its model; each has a store of its own in that folder; default: 0",
    )
    parser.add_argument(
        "--await-store",
        action="store_true",
        help="if another shard uses that folder, ask the launcher on standard output to end that, and wait for it",
    )
    parser.add_argument(
        "--kv-host-size",
        type=_size,
        metavar="SIZE",
        help="pinned host memory for KV blocks of the cuda backend, a tier between device and disk; default: none, or "
        "1GiB with --kv-disk-path",
    )


def _size(text: str) -> int:
    """Parses a size in bytes: a number with an optional unit of KiB, MiB, GiB or TiB. For argparse."""
    match = re.fullmatch(r"(\d{1,18})([KMGT]iB)?", text, re.ASCII)
    size = int(match[1]) * SIZE_UNITS[match[2]] if match else 0
    if not 1 <= size <= MAX_KV_DISK_BYTES:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size from 1 byte to 1024TiB; hint: write it as in `10GiB`")
    return size


def _gamma(text: str) -> float:
    """Parses the share of the vocabulary that a watermark marks green. For argparse."""
    try:
        gamma = float(text)
    except ValueError:
        gamma = 0.0
    if not 0.01 <= gamma <= 0.99:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number from 0.01 to 0.99")
    return gamma


class _WholeNumber:
    """Parses a whole number from `least` to `limit`. For argparse."""

    def __init__(self, limit: int, least: int = 1) -> None:
        self._limit, self._least = limit, least

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = self._least - 1
        if not self._least <= number <= self._limit:
            raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from {self._least} to {self._limit}")
        return number
