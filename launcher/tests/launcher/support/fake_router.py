"""Fake of `trunkline-router`: ready while the shard's socket answers; exits on SIGTERM and when its lifeline ends.

Its FAKE_ variables are in the file `environment` beside it.

FAKE_ROUTER=hold: a stream is open, so SIGTERM ends the router only once the file FAKE_RELEASE exists.
The file FAKE_EXIT makes the router exit at once with the code that the file holds.
The file FAKE_HUNG makes the router report that the shard has hung for the seconds that the file holds.
"""

import json
import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

os.environ.update(json.loads(Path(sys.argv[0]).with_name("environment").read_text()))
JOURNAL = os.environ["FAKE_JOURNAL"]


def note(event, **fields):
    line = json.dumps({"role": "router", "event": event, "pid": os.getpid(), **fields}) + "\n"
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def settings():
    path = Path(sys.argv[sys.argv.index("--settings") + 1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return json.loads(path.read_text())


def shard_answers():
    with socket.socket(socket.AF_UNIX) as shard:
        return shard.connect_ex(SETTINGS["shard_socket"]) == 0


def lifeline():
    while os.read(0, 64):
        pass
    note("lifeline")
    os._exit(1)


def exit_if_told():
    told = Path(os.environ["FAKE_EXIT"])
    if told.exists():
        code = int(told.read_text())
        told.unlink()
        print(f"error: ended with {code}", file=sys.stderr, flush=True)
        os._exit(code)


def report_if_told():
    told = Path(os.environ["FAKE_HUNG"])
    if told.exists():
        report = {"hung_shard": SETTINGS["shard_socket"], "hung_s": int(told.read_text())}
        told.unlink()
        print(json.dumps(report), flush=True)


def chatter():
    for number in range(int(os.environ.get("FAKE_CHATTER", "0"))):
        sys.stderr.write("router" * 200 + f" {number}\n")
        sys.stderr.flush()


if "--version" in sys.argv:
    print("trunkline-router 0.fake")
    sys.exit()

SETTINGS = settings()
note("start", settings=SETTINGS, variables=sorted(name for name in os.environ if name.startswith("TRUNKLINE_")))
assert "--lifeline" in sys.argv
behaviour = os.environ.get("FAKE_ROUTER", "serve")
if behaviour == "crash":
    print("router fell over", file=sys.stderr)
    sys.exit(101)
if behaviour == "refuse":
    print("error: no tokenizer", file=sys.stderr)
    sys.exit(2)
if behaviour == "refuse-and-linger":
    print("error: no tokenizer", file=sys.stderr, flush=True)
    note("refused")
    signal.pause()
terminated = threading.Event()
signal.signal(signal.SIGINT, signal.SIG_IGN)


def terminate(*_):
    note("sigterm")
    terminated.set()


signal.signal(signal.SIGTERM, terminate)
signal.signal(signal.SIGHUP, lambda *_: note("sighup"))
threading.Thread(target=lifeline, daemon=True).start()
chatter()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((SETTINGS["server"]["hostname"], SETTINGS["server"]["port"]))
listener.listen()
listener.settimeout(0.02)
note("listen")
while not terminated.is_set() or (behaviour == "hold" and not Path(os.environ["FAKE_RELEASE"]).exists()):
    try:
        exit_if_told()
        report_if_told()
        connection, _ = listener.accept()
    except TimeoutError:
        continue
    with connection:
        connection.settimeout(1)
        connection.recv(4096)
        ready = shard_answers() and behaviour != "never-ready"
        status = b"200 OK" if ready else b"503 Service Unavailable"
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
note("end")
