"""A Hub on a free loopback port, with the endpoints that huggingface_hub uses and the failures of the real Hub."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

VALID_TOKEN = "hf_valid"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """A repository. revisions: names of COMMIT. Without a token, a private one is hidden and a gated one refuses."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    is_private: bool = False
    is_gated: bool = False
    # Stated of every file instead of its own size.
    stated_size: int | None = None


@dataclass
class Hub:
    """The state of the Hub. url: for HF_ENDPOINT; requests: (method, path, Range header) of each request, in order."""

    repositories: dict[str, Repository]
    # The connection breaks once, after this many bytes of a file's body.
    break_after: int | None = None
    # The first half of a file's body is sent, and the rest once this is set.
    held: threading.Event | None = None
    # Requests for this file are refused.
    forbidden_file: str | None = None
    # The list of a repository's files has their sizes.
    states_sizes: bool = True
    # Every request is answered with this status.
    broken_status: int | None = None
    url: str = ""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextlib.contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if self.hub.broken_status is not None:
            self._error(self.hub.broken_status)
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token != VALID_TOKEN:
            self._error(401, message="Invalid credentials in Authorization header")
            return
        if path.startswith("/api/models/"):
            self._answer_api(path.removeprefix("/api/models/"), bool(token))
        else:
            self._answer_file(path.removeprefix("/"), bool(token), with_body=with_body)

    def _answer_api(self, path: str, has_token: bool) -> None:
        parts = path.split("/")
        name, call, rest = "/".join(parts[:2]), parts[2] if len(parts) > 2 else "revision", parts[3:]
        repository = self._repository(name, has_token)
        if repository is None or not self._has_revision(repository, rest[0] if rest else "main"):
            return
        if call == "revision":
            siblings: list[dict[str, object]] = [{"rfilename": file} for file in repository.files]
            if self.hub.states_sizes and "blobs=" in urlsplit(self.path).query:
                for sibling, content in zip(siblings, repository.files.values(), strict=True):
                    sibling["size"] = repository.stated_size or len(content)
            self._json({"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0})
        elif call == "tree":
            self._json(
                [
                    {"type": "file", "path": file, "size": len(content), "oid": _etag(content)}
                    for file, content in repository.files.items()
                ]
            )
        else:
            self._error(404)

    def _answer_file(self, path: str, has_token: bool, *, with_body: bool) -> None:
        owner, name, call, revision, *file = [*path.split("/"), *([""] * 3)][: max(4, path.count("/") + 1)]
        if call != "resolve":
            self._error(404)
            return
        repository = self._repository(f"{owner}/{name}", has_token)
        if repository is None or not self._has_revision(repository, revision):
            return
        if repository.is_gated and not has_token:
            self._error(403, code="GatedRepo", message="Access to this model is restricted")
            return
        if self.hub.forbidden_file == "/".join(file):
            self._error(403, message="Forbidden")
            return
        content = repository.files.get("/".join(file))
        if content is None:
            self._error(404, code="EntryNotFound")
            return
        begin, end = 0, (whole := len(content))
        if (wanted := self.headers.get("Range")) is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1 if last else whole, whole)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{whole}")
        else:
            self.send_response(200)
        self.send_header("ETag", f'"{_etag(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if with_body:
            self._body(content[begin:end])

    def _body(self, content: bytes) -> None:
        if self.hub.break_after is not None and len(content) > self.hub.break_after:
            self.wfile.write(content[: self.hub.break_after])
            self.hub.break_after = None
            self.close_connection = True
            return
        if self.hub.held is not None:
            half = len(content) // 2
            self.wfile.write(content[:half])
            self.hub.held.wait()
            content = content[half:]
        self.wfile.write(content)

    def _repository(self, name: str, has_token: bool) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.is_private and not has_token):
            # The real Hub does not reveal to a stranger which of the two it is.
            self._error(401 if not has_token else 404, code="RepoNotFound", message="Repository not found")
            return None
        return repository

    def _has_revision(self, repository: Repository, revision: str) -> bool:
        if revision in (*repository.revisions, COMMIT):
            return True
        self._error(404, code="RevisionNotFound", message=f"Invalid rev id: {revision}")
        return False

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, *, code: str | None = None, message: str | None = None) -> None:
        body = json.dumps({"error": message or "error"}).encode() if self.command == "GET" else b""
        self.send_response(status)
        if code is not None:
            self.send_header("X-Error-Code", code)
        if message is not None:
            self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
