"""Fake of `trunkline-router`: ready once a shard's socket answers; exits on SIGTERM, on SIGUSR2 and when its lifeline
ends.

Its FAKE_ variables are in the file `environment` beside it.

FAKE_ROUTER=hold: a stream is open, so a signal ends the router only once the file FAKE_RELEASE exists.
FAKE_ROUTER=busy: a lane that drains is empty only once the file FAKE_RELEASE exists.
The file FAKE_EXIT makes the router exit at once with the code that the file holds.
The file FAKE_HUNG makes the router report that a shard has hung: the file holds the seconds and the socket's name, and
is for the router that has this socket.
It loads the models of --load at once; the file FAKE_MODELS holds a report about another one, and that with `-left` at
the end of its name is for a router that was told to leave.
The file FAKE_EXCUSED makes the router report that requests are to blame for as many losses as the file says.
"""

import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from pathlib import Path

os.environ.update(json.loads(Path(sys.argv[0]).with_name("environment").read_text()))
JOURNAL = os.environ["FAKE_JOURNAL"]
# The variables that tests look at start with one of these.
SHOWN = ("TRUNKLINE_", "HF_", "HUGGING_FACE_", "AWS_", "AZURE_", "GOOGLE_", "OTEL_")


def note(event, **fields):
    line = json.dumps({"role": "router", "event": event, "pid": os.getpid(), **fields}) + "\n"
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def settings():
    """Returns the settings of each model."""
    paths = [Path(sys.argv[at + 1]) for at, flag in enumerate(sys.argv) if flag == "--settings"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in paths)
    return [json.loads(path.read_text()) for path in paths]


def answers(path):
    with socket.socket(socket.AF_UNIX) as shard:
        return shard.connect_ex(path) == 0


def identity(path):
    """Tells the socket of a shard from that of the one before; None if there is none."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def report_ready():
    for path in SOCKETS:
        now = identity(path)
        # A shard accepts no connection, so it can be asked only a few times.
        if now != ready.get(path):
            ready[path] = now if now and answers(path) else None
            if ready[path]:
                print(json.dumps({"ready": {"socket": path, "answers": "text"}}), flush=True)
                note("ready", socket=path)


def lifeline():
    for line in sys.stdin:
        [(name, order)] = json.loads(line).items()
        note(name, **order)
        if name == "drain":
            draining.add(order["socket"])
    note("lifeline")
    os._exit(1)


def report_drained():
    while draining and (behaviour != "busy" or Path(os.environ["FAKE_RELEASE"]).exists()):
        print(json.dumps({"drained": {"socket": draining.pop()}}), flush=True)


def exit_if_told():
    told = Path(os.environ["FAKE_EXIT"])
    if told.exists():
        code = int(told.read_text())
        told.unlink()
        print(f"error: ended with {code}", file=sys.stderr, flush=True)
        os._exit(code)


def report_if_told():
    told = Path(os.environ["FAKE_HUNG"])
    seconds, name = told.read_text().split() if told.exists() else ("", "")
    told = Path(os.environ["FAKE_MODELS"] + ("-left" if terminated.is_set() else ""))
    if told.exists():
        print(told.read_text(), flush=True)
        told.unlink()
    told = Path(os.environ["FAKE_HUNG"])
    for path in SOCKETS:
        if Path(path).name == name:
            told.unlink()
            print(json.dumps({"hung_shard": {"socket": path, "seconds": int(seconds)}}), flush=True)
    told = Path(os.environ["FAKE_EXCUSED"])
    if told.exists():
        report = {"excused": {"socket": SETTINGS["shard_sockets"][0], "num_losses": int(told.read_text())}}
        told.unlink()
        print(json.dumps(report), flush=True)
        note("excuses")


def chatter():
    for number in range(int(os.environ.get("FAKE_CHATTER", "0"))):
        sys.stderr.write("router" * 200 + f" {number}\n")
        sys.stderr.flush()


if "--version" in sys.argv:
    print("trunkline-router 0.fake")
    sys.exit()

ALL_SETTINGS = settings()
SETTINGS = ALL_SETTINGS[0]
SOCKETS = [path for each in ALL_SETTINGS for path in each["shard_sockets"]]
note(
    "start",
    settings=SETTINGS,
    flags=sys.argv[1:],
    variables=sorted(name for name in os.environ if name.startswith(SHOWN)),
    trace=[os.environ.get("TRACEPARENT"), os.environ.get("TRUNKLINE_LAUNCHER_SPAN")],
)
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
# The shards that compute, and the sockets of lanes that drain and are not reported as empty.
ready = {}
draining = set()
signal.signal(signal.SIGINT, signal.SIG_IGN)


def terminate(*_):
    note("sigterm")
    terminated.set()


def leave(*_):
    note("leave")
    print('"left"', flush=True)
    terminated.set()


signal.signal(signal.SIGTERM, terminate)
signal.signal(signal.SIGUSR2, leave)
signal.signal(signal.SIGHUP, lambda *_: note("sighup"))
threading.Thread(target=lifeline, daemon=True).start()
chatter()
listener = socket.socket(fileno=int(sys.argv[sys.argv.index("--listener") + 1]))
assert listener.getsockname()[1] == SETTINGS["server"]["port"]
listener.settimeout(0.02)
note("listen")
for at, flag in enumerate(sys.argv):
    if flag == "--load":
        print(json.dumps({"load": {"model": int(sys.argv[at + 1])}}), flush=True)
while not terminated.is_set() or (behaviour == "hold" and not Path(os.environ["FAKE_RELEASE"]).exists()):
    try:
        exit_if_told()
        report_if_told()
        report_drained()
        if behaviour != "never-ready":
            report_ready()
        if not any(ready.values()) and "--accept-when-ready" in sys.argv:
            time.sleep(0.005)
            continue
        connection, _ = listener.accept()
    except TimeoutError:
        continue
    with connection:
        connection.settimeout(1)
        path = connection.recv(4096).split(b" ")[1]
        status, body = b"200 OK", str(os.getpid()).encode()
        if path == b"/readyz" and not any(ready.values()):
            status, body = b"503 Unavailable", b'{"error": "no shard yet", "code": "model_loading"}'
        elif path == b"/metrics":
            body = b'trunkline_running_sequences{lane="0"} 2.0\n' + b'trunkline_running_sequences{lane="1"} 1.0\n'
            body += b'trunkline_lane_running_sequences{lane="0"} 3.0\n'
            body += b"trunkline_queued_sequences 1.0\n"
        elif path == b"/v1/models":
            body = b'{"data": [{"id": "fake/model"}]}'
            if "--on-demand" in sys.argv:
                loaded = {"value": "loaded", "memory_bytes": 1 << 30, "pinned": True}
                other = {"value": "failed", "detail": "no such file", "memory_bytes": 0, "pinned": False}
                cards = [{"id": "fake/model", "status": loaded}, {"id": "fake/other", "status": other}]
                body = json.dumps({"data": [*cards, {"id": "sql", "parent": "fake/model"}]}).encode()
        elif path.startswith(b"/v1/models/"):
            note("request", path=path.decode())
            body = b'{"id": "fake/model"}'
        elif path == b"/lora-adapters":
            body = b'[{"id": 0, "name": "sql", "state": "open", "rank": 8, "num_bytes": 3145728, "problem": null},'
            body += b' {"id": 1, "name": "old", "state": "unusable", "rank": null, "num_bytes": null,'
            body += b' "problem": "gone"}]'
        head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        connection.sendall(head + body)
note("end")
