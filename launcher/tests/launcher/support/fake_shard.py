"""Fake of `python -m trunkline_server`: behaves as docs/parts/launcher.md says, but loads nothing.

Its FAKE_ variables are in the file `environment` beside it. FAKE_JOURNAL: file to which every event is appended as one
JSON line. FAKE_RESOLVE, FAKE_SHARD: how to behave, the latter in the lane FAKE_LANE if there is one.

FAKE_SHARD=refuse-other: only the shards of the first model start.
FAKE_SHARD=late: the shard listens once the file FAKE_RELEASE exists.
FAKE_SHARD=hang-with-store, crash-with-store: a shard that was started beside another one hangs or crashes once that one
has given up its store.
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
VARIABLES = sorted(name for name in os.environ if name.startswith(SHOWN))


def note(role, event, **fields):
    fields |= {"role": role, "event": event, "pid": os.getpid(), "traceparent": os.environ.get("TRACEPARENT")}
    line = json.dumps(fields) + "\n"
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def flag(name):
    return sys.argv[sys.argv.index(name) + 1]


def resolve():
    behaviour = os.environ.get("FAKE_RESOLVE", "find")
    is_later = '"resolver"' in Path(JOURNAL).read_text()
    note("resolver", "start", argv=sys.argv[3:], variables=VARIABLES, safe_path=os.environ.get("PYTHONSAFEPATH"))
    if behaviour == "hang" or (behaviour == "hang-later" and is_later):
        signal.pause()
    if behaviour == "refuse":
        print("error: no model `x`", file=sys.stderr)
        sys.exit(2)
    if behaviour == "crash":
        sys.exit(3)
    if behaviour == "babble":
        print("not json")
        sys.exit(0)
    print("Fetching: 100%", file=sys.stderr)
    sizes = {"memory_bytes": 1000, "available_bytes": 5000} if "--estimate" in sys.argv else {}
    # The models come before the flags.
    flags = [at for at, word in enumerate(sys.argv) if word.startswith("--") and at > 3]
    for name in sys.argv[4 : min(flags, default=len(sys.argv))] or [""]:
        if "lost" in name:
            print(f"error: nobody has `{name}`", file=sys.stderr)
            sys.exit(2)
        if "--progress" in sys.argv:
            print(json.dumps({"done_bytes": 1, "total_bytes": 2}))
        model_id = "fake/other" if "other" in name else "fake/model"
        revision = "commit" if name.startswith("hub/") else None
        print(json.dumps({"path": os.environ["FAKE_MODEL"], "model_id": model_id, "revision": revision, **sizes}))


def chatter():
    print(json.dumps({"loading": {"percent": 40}}), flush=True)
    for number in range(int(os.environ.get("FAKE_CHATTER", "0"))):
        for stream in (sys.stdout, sys.stderr):
            stream.write("shard" * 200 + f" {number}\n")
            stream.flush()


def serve():
    path, lane = flag("--socket"), flag("--lane")
    begun = [json.loads(line) for line in Path(JOURNAL).read_text().splitlines()]
    runs = sum(entry["role"] == "shard" and entry["event"] == "start" and entry["lane"] == lane for entry in begun)
    folder = Path(path).parent
    folder_mode = stat.S_IMODE(folder.stat().st_mode)
    settings = json.loads(Path(flag("--settings")).read_text())
    note(
        "shard",
        "start",
        argv=sys.argv[3:],
        lane=lane,
        socket=path,
        device=os.environ.get("CUDA_VISIBLE_DEVICES"),
        settings=settings,
        variables=VARIABLES,
        folder=str(folder),
        folder_mode=folder_mode,
    )
    is_meant = os.environ.get("FAKE_LANE", lane) == lane
    behaviour = os.environ.get("FAKE_SHARD", "serve") if is_meant else "serve"
    if behaviour == "refuse" or (behaviour == "refuse-other" and "-m" in Path(path).name):
        print("error: tensor `x` is damaged", file=sys.stderr)
        sys.exit(2)
    if behaviour == "refuse-after-router":
        while '"refused"' not in Path(os.environ["FAKE_JOURNAL"]).read_text():
            time.sleep(0.005)
        print("error: tensor `x` is damaged", file=sys.stderr)
        sys.exit(2)
    if behaviour == "crash" or (behaviour == "crash-later" and runs > 0):
        print("about to fall over\n", file=sys.stderr)
        sys.exit(3)
    if behaviour == "hang-later" and runs > 0:
        signal.pause()
    if behaviour == "refuse-later" and runs > 0:
        print("error: the model is gone", file=sys.stderr)
        sys.exit(2)
    assert "--lifeline" in sys.argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()

    def terminate(*_):
        note("shard", "sigterm")
        if behaviour != "stubborn":
            ended.set()

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR2, lambda *_: note("shard", "gives-up-store"))
    signal.signal(signal.SIGUSR1, lambda *_: note("shard", "takes-store-back"))
    threading.Thread(target=lifeline, daemon=True).start()
    chatter()
    if "--await-store" in sys.argv:
        given_up = Path(JOURNAL).read_text().count('"gives-up-store"')
        print('"awaits_store"', flush=True)
        while Path(JOURNAL).read_text().count('"gives-up-store"') == given_up:
            time.sleep(0.005)
        if behaviour == "hang-with-store":
            os.kill(os.getpid(), signal.SIGSTOP)
        if behaviour == "crash-with-store":
            print("about to fall over\n", file=sys.stderr)
            sys.exit(3)
    while behaviour == "late" and not Path(os.environ["FAKE_RELEASE"]).exists():
        if ended.wait(0.005):
            sys.exit()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    note("shard", "listen", lane=lane, socket=path)
    ended.wait()
    note("shard", "end")


def lifeline():
    while os.read(0, 64):
        pass
    note("shard", "lifeline")
    os._exit(1)


if sys.argv[1] == "-c":
    print("python 3.fake")
elif sys.argv[1:4] == ["-m", "trunkline_server", "resolve"]:
    resolve()
elif sys.argv[1:4] == ["-m", "trunkline_server", "serve"]:
    serve()
elif sys.argv[1:4] == ["-m", "trunkline_server", "spare"]:
    note("spare", "start")
    line = os.read(0, 4096)
    if not line:
        note("spare", "lifeline")
        os._exit(1)
    sys.argv[3:] = ["serve", *json.loads(line)]
    serve()
elif sys.argv[1:3] == ["-m", "trunkline_server"] and sys.argv[3] in ("list", "show", "fit", "rm"):
    note("library", "start", variables=VARIABLES)
    print(*sys.argv[3:])
    sys.exit(int(os.environ.get("FAKE_LIBRARY", "7")))
else:
    sys.exit(f"not a command line of the page: {sys.argv}")
