"""The whole server over TLS: start, banner, answers and a renewed certificate."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from harness import START_DEADLINE_S, Trunkline, wait_for


def write_pair(folder: Path) -> str:
    """Writes a certificate for 127.0.0.1 and its key, and returns the certificate's text."""
    assert shutil.which("openssl"), "openssl is missing; hint: on Debian, apt-get install openssl"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=trunkline", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    return (folder / "cert.pem").read_text()


def flags(folder: Path) -> list[str]:
    return ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]


def get(server: Trunkline, path: str, certificate: str) -> httpx.Response:
    trust = ssl.create_default_context(cadata=certificate)
    return httpx.get(f"https://127.0.0.1:{server.port}{path}", verify=trust, timeout=60)


def test_server_with_a_certificate_serves_and_reloads_a_renewed_one(tmp_path: Path) -> None:
    first = write_pair(tmp_path)
    server = Trunkline(*flags(tmp_path))
    try:
        assert server._ready.wait(START_DEADLINE_S) and server.process.poll() is None, server.log()
        assert f"https://127.0.0.1:{server.port}" in "".join(server.banner)
        assert get(server, "/readyz", first).text == "ready"
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{server.port}/readyz")
        second = write_pair(tmp_path)

        def is_renewed() -> bool:
            try:
                return get(server, "/livez", second).status_code == 200
            except httpx.ConnectError:
                return False

        wait_for(is_renewed, "the renewed certificate")
        assert "trunkline_tls_reloads_total 1" in get(server, "/metrics", second).text
    finally:
        server.stop()
