"""Command line of a shard: `serve`, `spare`, `resolve`, `quantize` and others, described in docs/parts/launcher.md.

A user's mistake prints one line `error: ...` on stderr and exits with code 2. Each command imports only the modules
that it needs, which keeps its start short.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from trunkline_server import logs
from trunkline_server.errors import InvalidArgument, UserError

if TYPE_CHECKING:
    from trunkline_server.hub import ResolvedModel

EXIT_CODE_DOES_NOT_FIT = 1
EXIT_CODE_USER_MISTAKE = 2

MAX_LANE = 1023
_LIBRARY = ("list", "show", "rm")


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
        if options.command == "fit":
            return _fit(options)
        if options.command == "quantize":
            return _quantize(options)
        if options.command == "watermark":
            return _watermark(options)
        if options.command == "spare":
            return _spare()
        return _serve(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_CODE_USER_MISTAKE


def _serve(options: argparse.Namespace, began_ns: int | None = None) -> int:
    from trunkline_server.serve import serve
    from trunkline_server.settings import read_settings

    settings = read_settings(Path(options.settings))
    logging = settings.logging
    log_format = logging.log_format or logs.FORMATS[0]
    logs.configure(logging.log_level, log_format=log_format, lane=options.lane).report_periods()
    return serve(settings, options, began_ns)


def _spare() -> int:
    from trunkline_server import lifeline, spare, start_times

    arguments = spare.wait_for_arguments(lifeline.STANDARD_INPUT)
    return _serve(_parser().parse_args(["serve", *arguments]), start_times.now())


def _resolve(options: argparse.Namespace) -> int:
    from trunkline_server import hub

    def tell(done_bytes: int, total_bytes: int) -> None:
        print(json.dumps({"done_bytes": done_bytes, "total_bytes": total_bytes}), flush=True)  # noqa: T201

    progress = tell if options.progress else None
    if progress is not None:
        # Nobody looks at the bars.
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        for index, model in enumerate(options.models or [None]):
            resolved = hub.resolve(
                model,
                revision=options.revision,
                downloads=not options.local,
                paths=not options.no_paths,
                progress=progress,
            )
            settings = options.estimate[index] if options.estimate else None
            print(json.dumps(_resolved(resolved, settings)), flush=True)  # noqa: T201
    except KeyboardInterrupt:
        return 130
    return 0


def _resolved(resolved: ResolvedModel, settings: str | None) -> dict[str, str | int | None]:
    """Returns what the launcher reads of a model. settings: as the flag `--estimate`."""
    line: dict[str, str | int | None] = {
        "path": str(resolved.path),
        "model_id": resolved.model_id,
        "revision": resolved.revision,
    }
    if settings is None:
        return line
    from trunkline_server.backends.host_memory import available_memory
    from trunkline_server.library import expected_memory
    from trunkline_server.serve import backend_options
    from trunkline_server.settings import parse_settings

    line["available_bytes"] = available_memory()
    read = parse_settings(settings.encode(), "--estimate")
    # Other backends keep models in a device's memory.
    if read.compute.backend == "cpu":
        lane = argparse.Namespace(lane=0, await_store=False, lifeline=False)
        try:
            line["memory_bytes"] = expected_memory(resolved.path, backend_options(read, lane))
        except UserError as error:
            line["problem"] = str(error)
    return line


def _fit(options: argparse.Namespace) -> int:
    from trunkline_server import fit

    question = fit.Question(
        context=options.context,
        streams=options.streams,
        quantize=options.quantize,
        kv_cache_dtype=options.kv_cache_dtype,
        available_bytes=options.available,
    )
    try:
        text, fits = fit.answer(options.model, options.revision, question, as_json=options.json)
    except KeyboardInterrupt:
        return 130
    print(text, flush=True)  # noqa: T201
    return 0 if fits else EXIT_CODE_DOES_NOT_FIT


def _quantize(options: argparse.Namespace) -> int:
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
    commands.add_parser(
        "spare",
        help="import what a shard needs, then read a JSON array with the arguments of `serve` from standard input",
        allow_abbrev=False,
    )
    _add_resolve(commands)
    _add_library(commands)
    _add_fit(commands)
    _add_quantize(commands)
    _add_watermark(commands)
    return parser


def _add_serve(commands: _Commands) -> None:
    serve = commands.add_parser("serve", help="load a model and answer the router on a socket", allow_abbrev=False)
    serve.add_argument("--settings", required=True, metavar="PATH", help="JSON file as the launcher writes it")
    serve.add_argument("--socket", required=True, metavar="PATH", help="Unix socket to listen on")
    serve.add_argument(
        "--lane",
        type=_lane,
        default=0,
        metavar="N",
        help="number of this shard among those of its model; each has a store of its own on disk; default: 0",
    )
    serve.add_argument(
        "--await-store",
        action="store_true",
        help="if another shard uses the store on disk, ask the launcher on standard output to end that, and wait",
    )
    serve.add_argument("--lifeline", action="store_true", help="exit at once when standard input closes")


def _add_resolve(commands: _Commands) -> None:
    resolve = commands.add_parser(
        "resolve", help="find or download models and print the path of each as a JSON line", allow_abbrev=False
    )
    resolve.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="Hub id, folder or .gguf file; default, and if empty: the embedded model",
    )
    resolve.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub repository")
    resolve.add_argument("--local", action="store_true", help="download nothing")
    resolve.add_argument("--no-paths", action="store_true", help="take MODEL for a Hub id even if a path has its name")
    resolve.add_argument(
        "--progress", action="store_true", help="also print JSON lines that tell how much has been downloaded"
    )
    resolve.add_argument(
        "--estimate",
        action="append",
        metavar="JSON",
        help="also estimate the memory of the model with these settings, as in a file of `serve`; once for each MODEL",
    )


def _add_library(commands: _Commands) -> None:
    commands.add_parser("list", help="list the downloaded models", allow_abbrev=False)
    show = commands.add_parser("show", help="describe a model on this machine", allow_abbrev=False)
    show.add_argument("model", nargs="?", metavar="MODEL", help="as for `resolve`")
    show.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub repository")
    remove = commands.add_parser("rm", help="delete a downloaded repository", allow_abbrev=False)
    remove.add_argument("model", metavar="MODEL", help="Hub id")


def _add_fit(commands: _Commands) -> None:
    fit = commands.add_parser(
        "fit", help="print the memory that a model needs, and exit with 1 if there is less", allow_abbrev=False
    )
    fit.add_argument("model", nargs="?", metavar="MODEL", help="as for `resolve`, but nothing is downloaded")
    fit.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub repository")
    fit.add_argument("--context", type=int, metavar="TOKENS", help="prompt and output of a stream")
    fit.add_argument(
        "--streams", type=int, default=1, metavar="N", help="streams that run at the same time; default: 1"
    )
    fit.add_argument("--quantize", default="none", metavar="TYPE", help="as for the setting")
    fit.add_argument("--kv-cache-dtype", default="auto", metavar="DTYPE", help="as for the setting")
    fit.add_argument("--available", type=int, metavar="BYTES", help="default: what this machine has now")
    fit.add_argument("--json", action="store_true", help="print one line of JSON")


def _add_quantize(commands: _Commands) -> None:
    quantize = commands.add_parser(
        "quantize", help="write an unquantised model as a GGUF file with quantised weights", allow_abbrev=False
    )
    quantize.add_argument("model", metavar="MODEL", help="as for `resolve`")
    quantize.add_argument("out", metavar="OUT.gguf", help="the file to write, which must not exist")
    quantize.add_argument("--type", choices=("int8", "int4"), default="int8", help="format of matrices; default: int8")
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


def _gamma(text: str) -> float:
    """Parses the share of the vocabulary that a watermark marks green. For argparse."""
    try:
        gamma = float(text)
    except ValueError:
        gamma = 0.0
    if not 0.01 <= gamma <= 0.99:
        raise argparse.ArgumentTypeError(f"`{text}` is not a number from 0.01 to 0.99")
    return gamma


def _lane(text: str) -> int:
    """Parses the number of a lane. For argparse."""
    if not (text.isdecimal() and text.isascii()) or int(text) > MAX_LANE:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number from 0 to {MAX_LANE}")
    return int(text)
