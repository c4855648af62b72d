"""The shard as a process: lifeline, signals, exit codes, log lines."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.settings import write_settings
from tests.fakes.shard import DEADLINE_S, Client
from tests.service.test_step import decode_plan, first_plan
from trunkline_server import cli

SERVER = Path(__file__).resolve().parents[2]
TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG| INFO| WARN|ERROR) shard: \S.*")


class Process:
    """Runs `python -m trunkline_server serve` with the fake backend in place of the real ones.

    is_spare: it runs `spare` instead, and `become_shard` hands over the arguments of `serve`.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        gate: bool = False,
        program: str = "tests.fakes.main",
        is_spare: bool = False,
        **settings: object,
    ) -> None:
        self.socket_path = folder / "shard.sock"
        self.gate = folder / "gate"
        if gate:
            os.mkfifo(self.gate)
        environment = {**os.environ, "PYTHONPATH": str(SERVER), "FAKE_GATE": str(self.gate) if gate else ""}
        path = write_settings(folder, folder / "model.gguf", **settings)
        self._arguments = [f"--settings={path}", f"--socket={self.socket_path}", *flags]
        self.child = subprocess.Popen(
            [sys.executable, "-m", program, *(["spare"] if is_spare else ["serve", *self._arguments])],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self._line_read = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def become_shard(self) -> None:
        self.write(json.dumps(self._arguments))

    def write(self, line: str) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def wait_ready(self) -> None:
        self.wait_for_line("ready")

    def wait_for_line(self, part: str) -> None:
        def is_there() -> bool:
            return any(part in line for line in self.log)

        with self._line_read:
            self._line_read.wait_for(lambda: is_there() or self._has_ended, DEADLINE_S)
            assert is_there(), self.log

    def wait(self) -> int:
        code = self.child.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def open_gate(self) -> None:
        """Lets the waiting step go on; first waits for a step to wait."""
        with self.gate.open("w"):
            pass

    def cut_lifeline(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()

    def clean_up(self) -> None:
        self.child.kill()
        self.child.wait()
        self._reader.join()
        self.cut_lifeline()

    def _read_log(self) -> None:
        assert self.child.stderr is not None
        with self.child.stderr as lines:
            for line in lines:
                with self._line_read:
                    self.log.append(line.rstrip("\n"))
                    self._line_read.notify_all()
        with self._line_read:
            self._has_ended = True
            self._line_read.notify_all()


Start = Callable[..., Process]


@pytest.fixture
def start(socket_folder: Path) -> Iterator[Start]:
    started: list[Process] = []

    def start_process(*flags: str, **options: Any) -> Process:
        started.append(Process(socket_folder, *flags, **options))
        return started[-1]

    yield start_process
    for process in started:
        process.clean_up()


def test_end_of_the_lifeline_ends_the_process_at_once(start: Start) -> None:
    process = start("--lifeline", gate=True)
    process.wait_ready()
    with Client(process.socket_path) as client:
        stream = client.open()
        # A step that never ends does not delay the exit.
        stream.send(first_plan())
        process.cut_lifeline()
        assert process.wait() == 1


def test_a_spare_is_a_shard_from_the_line_on(start: Start) -> None:
    process = start("--lifeline", is_spare=True)
    process.become_shard()
    process.wait_ready()
    with Client(process.socket_path) as client:
        assert client.open().step(first_plan()).step_id == 1
    process.cut_lifeline()
    assert process.wait() == 1


def test_a_spare_has_imported_all_that_a_shard_needs(
    start: Start, socket_folder: Path, embedded_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (socket_folder / "model.gguf").symlink_to(embedded_gguf)
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    own = {"max_batch_total_tokens": 1024, "weights_cache": {"folder": str(socket_folder)}, "log_level": "debug"}
    process = start(program="trunkline_server", is_spare=True, **own)
    process.become_shard()
    process.wait_ready()
    with Client(process.socket_path) as client:
        assert client.open().step(first_plan()).step_id == 1
    (begin,) = (number for number, line in enumerate(process.log) if "loading model" in line)
    imported = [line.split("|")[-1].strip() for line in process.log if line.startswith("import time:")]
    assert "trunkline_server._proto.shard_pb2" in imported
    assert [line for line in process.log[begin:] if line.startswith("import time:")] == []


def test_a_spare_has_no_threads_that_would_keep_all_cores() -> None:
    program = "import os; from trunkline_server import spare; spare.import_all(); print(os.listdir('/proc/self/task'))"
    environment = {**os.environ, "PYTHONPATH": str(SERVER)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert len(ast.literal_eval(done.stdout)) == 1


def test_a_spare_ends_with_its_lifeline(start: Start) -> None:
    process = start(is_spare=True)
    process.cut_lifeline()
    assert process.wait() == 1
    assert process.log == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--settings=s", "is not JSON"),
        ('{"settings": "s"}', "is not an array of strings"),
        ('["--settings=/nowhere/s", "--socket=s"]', "cannot read the settings `/nowhere/s`"),
    ],
)
def test_a_wrong_line_is_a_mistake(line: str, expected: str, start: Start) -> None:
    process = start(is_spare=True)
    process.write(line)
    assert process.wait() == 2
    assert process.log[0].startswith("error: ")
    assert expected in process.log[0]


def test_without_the_flag_the_end_of_standard_input_is_ignored(start: Start) -> None:
    process = start()
    process.cut_lifeline()
    process.wait_ready()
    with Client(process.socket_path) as client:
        assert client.open().step(first_plan()).step_id == 1


def test_sigterm_finishes_the_running_step_and_exits_zero(start: Start) -> None:
    process = start("--lifeline", gate=True)
    process.wait_ready()
    with Client(process.socket_path) as client:
        stream = client.open()
        stream.send(first_plan())
        stream.send(decode_plan(2, 3))
        deadline = time.monotonic() + DEADLINE_S
        while not client.health().step_running:
            assert time.monotonic() < deadline, "the step does not begin"
        # The terminal's Ctrl-C reaches the whole process group, but only the launcher acts on it.
        process.child.send_signal(signal.SIGINT)
        process.child.send_signal(signal.SIGTERM)
        process.wait_for_line("shard: stopping")
        process.open_gate()
        assert stream.receive().step_id == 1
        stream.error()
    assert process.wait() == 0
    assert not process.socket_path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_shard_stops_at_a_signal(start: Start, number: int) -> None:
    process = start()
    process.wait_ready()
    process.child.send_signal(number)
    assert process.wait() == 0
    assert not process.socket_path.exists()


def test_a_signal_that_another_thread_receives_ends_the_wait() -> None:
    """The system may deliver a signal to any thread, which does not interrupt a read of the main thread."""
    program = """
import signal, threading
from trunkline_server.serve import _Signals

signals = _Signals(ignore_interrupt=False)
signals.hold()
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()

def send():
    with open("/proc/self/stat") as stat:
        # Until the main thread sleeps, which by then it does in `wait` alone.
        while stat.seek(0) or stat.read().rpartition(")")[2].split()[0] != "S":
            pass
    signal.pthread_kill(other.ident, signal.SIGTERM)

threading.Thread(target=send, daemon=True).start()
signals.wait()
print("stopping")
"""
    environment = {**os.environ, "PYTHONPATH": str(SERVER)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "stopping\n"), done.stderr


def test_signals_of_the_launcher_hand_the_store_over_and_back() -> None:
    program = """
import os, signal
from trunkline_server.serve import _Signals

class Store:
    def give_up(self): print("gives up")
    def take_back(self): print("takes back")

signals = _Signals(ignore_interrupt=False)
signals.hold()
for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    os.kill(os.getpid(), number)
signals.wait(Store())
print("stopping")
"""
    environment = {**os.environ, "PYTHONPATH": str(SERVER)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
    assert done.stdout.split("\n") == ["gives up", "takes back", "gives up", "stopping", ""], done.stderr


def test_a_bug_in_the_backend_ends_the_process_with_an_error(start: Start) -> None:
    process = start(log_format="json")
    process.wait_ready()
    with Client(process.socket_path) as client:
        stream = client.open()
        plan = first_plan()
        # For this token the fake raises a BaseException, as a panic in the kernels would.
        plan.starts[0].token_ids[0] = 62
        stream.send(plan)
        stream.error()
    assert process.wait() == 70
    entries = [json.loads(line) for line in process.log]
    assert entries[-1]["level"] == "ERROR"
    assert entries[-1]["message"] == "engine loop failed (step 1, 1 chunks, 1 sequences)"
    assert "PanicException" in entries[-1]["traceback"]
    assert all({"timestamp", "level", "target", "message"} <= entry.keys() for entry in entries)


def test_log_lines_have_the_form_of_all_processes(start: Start) -> None:
    process = start()
    process.wait_ready()
    process.child.terminate()
    assert process.wait() == 0
    assert [line for line in process.log if not TEXT_LINE.fullmatch(line)] == []
    assert any(" INFO shard: ready seconds=" in line for line in process.log)


def test_a_mistake_is_one_line_and_exit_code_two(start: Start) -> None:
    process = start(program="trunkline_server", log_level="error")
    assert process.wait() == 2
    assert len(process.log) == 1, process.log
    assert process.log[0].startswith("error: ")
    assert "/model.gguf` does not exist" in process.log[0]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "the following arguments are required: --settings"),
        (["--settings=s", "--lane=-1"], "argument --lane: `-1` is not a whole number from 0 to 1023"),
        (["--settings=s", "--lane=1024"], "argument --lane: `1024` is not a whole number from 0 to 1023"),
        (["--settings=s", "--nope"], "unrecognized arguments: --nope"),
        (["--settings=s", "--life"], "unrecognized arguments: --life"),
        (["--settings=/nowhere/s"], "cannot read the settings `/nowhere/s`: [Errno 2] No such file or directory"),
    ],
)
def test_invalid_flags_are_one_line_errors(flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_mistake(flags, expected, capsys)


# A file of settings up to the first group.
NAMED = '{"shard_sockets": ["s"], "model_path": "m", "served_model_name": "n"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "EOF while parsing an object at line 1 column 1; hint: check that launcher and shard have the same"),
        ("{}", "missing field `shard_sockets` at line 1 column 2; hint: check that launcher and shard have the same"),
        ('{"compute": {"thread": 1}}', "unknown field `thread`, expected one of `backend`, "),
        (f'{NAMED}, "compute": {{"threads": 0}}}}', "`--threads` is `0`; expected a whole number from 1 to 1024"),
        (
            f'{NAMED}, "step_limits": {{"max_step_sequences": 5000}}}}',
            "`--max-step-sequences` is `5000`; expected a whole number from 1 to 4096",
        ),
    ],
)
def test_damaged_settings_are_one_line_errors(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s").write_text(text)
    assert_mistake([f"--settings={tmp_path / 's'}"], expected, capsys)


def assert_mistake(flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--socket=s", *flags]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    assert line.startswith("error: ")
    assert expected in line


def test_a_damaged_model_is_a_mistake(start: Start, socket_folder: Path) -> None:
    (socket_folder / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    process = start(program="trunkline_server", log_level="error")
    assert process.wait() == 2
    assert len(process.log) == 1
    assert "model.gguf" in process.log[0]


def test_an_unusable_socket_path_is_a_mistake(start: Start, socket_folder: Path) -> None:
    (socket_folder / "shard.sock").write_text("precious")
    process = start(log_level="error")
    assert process.wait() == 2
    assert "is not a socket" in process.log[-1]


def test_a_store_without_a_size_is_a_mistake(start: Start) -> None:
    process = start(kv_disk_path="kv")
    assert process.wait() == 2
    assert "`kv_disk_path`, but no `kv_disk_size`; hint: set it in bytes" in process.log[-1]
