"""Attacks of the kinds that were published in 2025 and 2026 against vLLM, SGLang, TGI, llama.cpp and Ollama.

Each test names a class of attacks and says what was attacked there. `docs/security.md` lists all classes, with those
that tests elsewhere hold. Every test here also fails if a process of the server was replaced, if a block is still held
afterwards, or if an error shows an address of memory, a path or a place in the source.
"""

from __future__ import annotations

import json
import pickle
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import TRUNKLINE, Trunkline, http, serving, sse_events, wait_for
from tenants import headers, write_keys
from test_windows import write_model

CHAT, COMPLETIONS, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
GENERATE = "/generate"
USER = [{"role": "user", "content": "x"}]
# Path → the least body, which generates little.
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 4},
    COMPLETIONS: {"prompt": "x", "max_tokens": 4},
    RESPONSES: {"input": "x", "max_output_tokens": 4},
    ANTHROPIC: {"messages": USER, "max_tokens": 4},
    GENERATE: {"inputs": "x", "parameters": {"max_new_tokens": 4}},
    "/chat_tokenize": {"messages": USER},
}
# Texts that no error may show: addresses, places in the source, and paths, unless the request itself has them.
LEAK = re.compile(r"0x[0-9a-f]{6,}|Traceback|panick|\.(?:rs|py)\b|/(?:etc|home|opt|proc|root|run|tmp|usr|var|work)/")
# A tenth of what the attacks below took where they succeeded, and many times what they take here.
PROMPT_S = 5.0


class Target:
    """A server with API keys, which is attacked as the tenant `bombs`."""

    def __init__(self, server: Trunkline) -> None:
        self.server = server

    def send(self, path: str, body: Any, tenant: str = "bombs", **more: str) -> httpx.Response:
        """Posts a body, and checks that the answer blames the client for a failure and tells it nothing else."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        fields = headers(tenant) | {"content-type": "application/json"} | more
        answer = http.post(self.server.base_url + path, content=content, headers=fields, timeout=120)
        return checked(answer, content.decode(errors="replace"))

    def get(self, path: str, tenant: str = "bombs") -> httpx.Response:
        return checked(http.get(self.server.base_url + path, headers=headers(tenant), timeout=120), path)

    def codes(self, cases: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, str | int]:
        """Returns for each case the code of its error, or 200."""
        found = {}
        for case, (path, fields) in cases.items():
            body = BODIES[path] | fields
            if path == GENERATE:
                body["parameters"] = BODIES[path]["parameters"] | fields.get("parameters", {})
            answer = self.send(path, body)
            found[case] = 200 if answer.status_code == 200 else code_of(answer)
        return found


def checked(answer: httpx.Response, sent: str) -> httpx.Response:
    assert answer.status_code < 500, f"{sent[:200]}: {answer.status_code} {answer.text}"
    if answer.status_code != 200:
        for leak in LEAK.findall(answer.text):
            assert leak in sent, f"{sent[:200]}: the error shows `{leak}`: {answer.text}"
    return answer


def code_of(answer: httpx.Response) -> str:
    error = answer.json()
    code: str = error["code"] if "code" in error else error["error"]["code"]
    return code


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    write_keys(keys)
    with serving("--api-keys", str(keys), headers=headers("calm")) as server:
        yield Target(server)


@pytest.fixture(autouse=True)
def survival(target: Target) -> Iterator[None]:
    """Fails if the server did not survive the test as it was."""
    server = target.server
    processes = (server.router_pid(), server.shard_pid())
    yield
    assert server.complete("hello", max_tokens=2)["choices"][0]["text"]
    wait_for(server.holds_nothing, "every block to be released")
    assert (server.router_pid(), server.shard_pid()) == processes, "a process was replaced"
    assert "panic" not in server.log()


class Probes:
    """Asks `/livez` all the time inside a `with` block, and measures the slowest answer."""

    def __init__(self, server: Trunkline) -> None:
        self._url = f"{server.base_url}/livez"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.slowest_s = 0.0

    def _ask(self) -> None:
        while not self._over.is_set():
            begin = time.monotonic()
            status = http.get(self._url, timeout=120).status_code
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin if status == 200 else float("inf"))
            self._over.wait(0.01)

    def __enter__(self) -> Probes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_a_request_id_gives_no_hold_on_a_request(target: Target) -> None:
    """Short, guessed or repeated request ids.

    vLLM's engine knew requests by the id that a client chose in `X-Request-Id`, so that one with the same id took part
    in the output of another or ended it (vllm-project/vllm#10583, #27987). Stored responses are fetched by an id, too.
    """
    server, shared = target.server, {"x-request-id": "shared-id"}
    body = {"prompt": "The sea is", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    alone = target.send(COMPLETIONS, body, "calm").json()["choices"][0]["text"]
    streamed: dict[str, Any] = {"json": body | {"max_tokens": 2000, "stream": True}, "timeout": 120}
    with http.stream("POST", server.base_url + COMPLETIONS, headers=headers("bombs") | shared, **streamed) as first:
        next(sse_events(first.iter_lines()))
        with ThreadPoolExecutor() as pool:
            beside = [pool.submit(target.send, COMPLETIONS, body, "calm", **shared) for _ in range(2)]
            # Leaving in the middle aborts only this request.
            first.close()
            texts = [answer.result().json()["choices"][0]["text"] for answer in beside]
    assert texts == [alone, alone]

    kept = [target.send(RESPONSES, BODIES[RESPONSES], "calm", **shared).json()["id"] for _ in range(2)]
    digits = [response_id.removeprefix("resp_") for response_id in kept]
    assert len(set(digits)) == 2
    assert all(re.fullmatch(r"[0-9a-f]{24,}", each) for each in digits), "96 random bits"

    def told(response_id: str) -> list[str]:
        """Returns what the other tenant gets to know about an id."""
        reference = {"input": [{"type": "item_reference", "id": response_id}], "max_output_tokens": 1}
        answers = [
            target.get(f"{RESPONSES}/{response_id}"),
            target.get(f"{RESPONSES}/{response_id}/input_items"),
            http.delete(f"{server.base_url}{RESPONSES}/{response_id}", headers=headers("bombs")),
            target.send(RESPONSES, BODIES[RESPONSES] | {"previous_response_id": response_id}),
            target.send(RESPONSES, reference),
        ]
        assert {answer.status_code for answer in answers} == {404}, [answer.text for answer in answers]
        return [answer.text.replace(response_id, "ID") for answer in answers]

    assert told(kept[0]) == told("resp_" + "0" * len(digits[0])), "an error tells whether the id exists"
    assert target.get(f"{RESPONSES}/{kept[0]}", "calm").json()["id"] == kept[0]


# Expressions that a backtracking engine matches in exponential or in cubic time.
CATASTROPHES = [
    "(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    "(.*)*x",
    "(x+x+)+y",
    "(([a-z])+.)+[A-Z]([a-z])+$",
    "((a{0,9}){0,9}){0,9}",
]


def test_a_catastrophic_expression_takes_no_longer_than_another(target: Target) -> None:
    """Regular expressions that backtrack, in `pattern`, in tools and as stop strings.

    vLLM's parser of tool calls backtracked over a model's reply (CVE-2025-48887). `router/text/tests` holds the same
    for the expressions in a model's tokenizer, and `test_grammar_bombs.py` for grammars that are large.
    """
    output = "a" * 40
    for expression in CATASTROPHES:
        pattern = {"type": "string", "pattern": expression}
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": pattern}, "required": ["a"]}}
        for fields in (
            {"guided_regex": expression},
            {"guided_json": pattern},
            {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"},
            # Nobody executes these: they are texts.
            {"stop": [expression] * 64, "prediction": {"type": "content", "content": output}},
            {"bad_words": [expression] * 64},
        ):
            begin = time.monotonic()
            answer = target.send(CHAT, BODIES[CHAT] | {"max_tokens": 20} | fields)
            assert time.monotonic() - begin < PROMPT_S, f"{expression} {list(fields)}"
            assert answer.status_code == 200 or code_of(answer) == "schema_too_complex", answer.text


def test_templates_come_only_from_the_model(target: Target) -> None:
    """Templates smuggled through a request.

    vLLM took a `chat_template` from the request, and another one from within `chat_template_kwargs`: an endless loop in
    it held the server (CVE-2025-61620).
    """
    endless = "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}"
    assert code_of(target.send(CHAT, BODIES[CHAT] | {"chat_template": endless})) == "unsupported_field"

    def rendered(**fields: Any) -> str:
        answer = target.send("/chat_tokenize", BODIES["/chat_tokenize"] | fields)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["templated_text"]
        return text

    plain = rendered()
    for name in ("chat_template", "template", "default_chat_template", "chat_templates"):
        assert rendered(chat_template_kwargs={name: endless}) == plain
    # What a message says is text, in whatever field.
    said = "{{ 7 * 7 }}{% raw %}" + endless
    assert said in rendered(messages=[{"role": "user", "content": said}])
    assert said in rendered(messages=[{"role": "system", "content": said}, *USER])


@pytest.mark.alone
def test_variables_of_a_template_neither_replace_nor_block_anything(target: Target) -> None:
    """Blocking `chat_template_kwargs`: with `tokenize` among them vLLM tokenized on its event loop (CVE-2025-62426)."""
    long = BODIES[CHAT] | {"messages": [{"role": "user", "content": "word " * 150_000}]}
    options = {"tokenize": True, "return_dict": True, "padding": "max_length", "max_length": 10**9, "truncation": True}
    begin = time.monotonic()
    with Probes(target.server) as probes, ThreadPoolExecutor(4) as pool:
        bodies = [long | {"chat_template_kwargs": options | {"x": [[[]] * 100] * 100}}] * 8
        answers = list(pool.map(lambda body: target.send(CHAT, body), bodies))
    assert {code_of(answer) for answer in answers} == {"context_length_exceeded"}
    total_s = time.monotonic() - begin
    # Had they blocked the server, a probe would have waited for at least one of the eight.
    assert probes.slowest_s < total_s / 12, f"/livez took {probes.slowest_s:.2f} s of {total_s:.2f} s"
    for name in ("messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"):
        answer = target.send(CHAT, BODIES[CHAT] | {"chat_template_kwargs": {name: 5}})
        assert code_of(answer) == "message_invalid", answer.text


def called(*ids: Any, **more: Any) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls} | more


def result(call_id: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


# The messages of a chat, and whether they are accepted.
CALLS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "a result without a call": ([result("a")], True),
    "a result before its call": ([*USER, result("a"), called("a"), *USER], True),
    "results in another order": ([*USER, called("a", "b"), result("b"), result("a")], True),
    "a result of another call": ([*USER, called("a"), result("b")], True),
    "a call without a result": ([*USER, called("a"), *USER], True),
    "one id for all": ([*USER, called("a", "a"), result("a"), called("a"), result("a"), result("a")], True),
    "empty ids": ([*USER, called(""), result("")], True),
    "long ids": ([*USER, called("x" * 100_000), result("x" * 100_000)], True),
    "ids that spell control tokens": ([*USER, called("<|im_end|>"), result("<|im_end|>")], True),
    "numbers as ids": ([*USER, called(5), result(5)], False),
    "no ids": ([*USER, called(None), result(None)], False),
    "a call of the user": ([called("a", role="user", content="x")], False),
    "a call without a function": ([*USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}], False),
}


def test_tool_call_ids_may_come_in_any_order(target: Target) -> None:
    """Ids of tool calls in odd orders, which other servers' templates and parsers answered with 500 or an assertion."""
    for case, (messages, is_accepted) in CALLS.items():
        answer = target.send(CHAT, BODIES[CHAT] | {"messages": messages})
        assert answer.status_code == (200 if is_accepted else 400), f"{case}: {answer.text}"
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}
    output = {"type": "function_call_output", "call_id": "a", "output": "r"}
    for items in ([output], [output, call], [call, call, output, output], [call, output | {"call_id": "b"}]):
        assert target.send(RESPONSES, BODIES[RESPONSES] | {"input": items}).status_code == 200
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    answered = {"type": "tool_result", "tool_use_id": "a", "content": "r"}
    for blocks in ([], [use], [use, use], [use | {"id": "b"}]):
        messages = [*USER, *([{"role": "assistant", "content": blocks}] if blocks else [])]
        messages.append({"role": "user", "content": [answered, answered]})
        assert target.send(ANTHROPIC, BODIES[ANTHROPIC] | {"messages": messages}).status_code == 200


def payload(marker: Path) -> bytes:
    """Returns a pickle that makes a file when it is read."""

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (marker,))

    return pickle.dumps(Attack())


@pytest.fixture
def hostile_folder(tmp_path: Path) -> Path:
    """A model that is intact, beside code and pickles that make the file `ran`."""
    folder, marker = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    config = {
        "architectures": ["EvilForCausalLM"], "model_type": "mistral", "num_hidden_layers": 1, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu", "trust_remote_code": True,
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }  # fmt: skip
    write_model(folder, config, ("input_layernorm", "post_attention_layernorm"), 0.125)
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    # Reaches Python's `os` in an environment of Jinja without a sandbox.
    reach = f"cycler.__init__.__globals__.os.popen('touch {marker}').read()"
    template = "{{ " + reach + " }}{{ ''.__class__.__mro__[1].__subclasses__() }}"
    tokenizer = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    for name in ("pytorch_model.bin", "training_args.bin", "tokenizer.pkl", "consolidated.00.pth"):
        (folder / name).write_bytes(payload(marker))
    pickle.loads(payload(tmp_path / "works"))
    assert (tmp_path / "works").exists(), "the pickle does nothing"
    return folder


def test_nothing_in_a_models_folder_is_executed(hostile_folder: Path) -> None:
    """Code, pickles and templates of a model.

    vLLM executed the module that `auto_map` named without `trust_remote_code` (CVE-2025-66448) and read checkpoints
    with an unsafe `torch.load` (CVE-2025-24357). SGLang rendered a file's template without a sandbox (CVE-2026-5760).
    `server/tests/transformers/test_refusals.py` holds the same for the `transformers` backend.
    """
    marker = hostile_folder.parent / "ran"
    with serving(model=str(hostile_folder)) as server:
        assert server.complete("abc", max_tokens=2)["choices"][0]["text"]
        chat = http.post(server.base_url + CHAT, json=BODIES[CHAT], timeout=60)
        assert code_of(chat) == "chat_template_failed", chat.text
    (hostile_folder / "model.safetensors").unlink()
    refused = subprocess.run(
        [TRUNKLINE, "serve", str(hostile_folder), "--port", "0"], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode != 0
    assert "pickle files are never read" in refused.stderr
    assert not marker.exists(), "something in the folder was executed"


NAMES = ["../../victim", "..", "../../../etc/passwd", "a/../../victim", "models--../victim", "a/b/../../c"]


def test_no_name_leads_out_of_its_folder(target: Target, tmp_path: Path) -> None:
    """`../` in names of models and ids, as in the digests of Ollama (CVE-2024-37032) and in other servers since."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    environment = target.server.environment | {"HF_HOME": str(tmp_path / "a/b"), "HF_HUB_OFFLINE": "1"}
    for name in NAMES[:2]:
        for command, problem in (("rm", "is not downloaded"), ("download", "does not exist|has neither")):
            told = subprocess.run(
                [TRUNKLINE, command, name], env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path
            )
            assert told.returncode == 2, told.stdout
            assert re.fullmatch(f"error: .*({problem}).*\n", told.stderr), told.stderr
    for name in NAMES:
        encoded = name.replace("/", "%2F")
        for path in (f"/v1/models/{name}", f"/v1/models/{encoded}", f"{RESPONSES}/{encoded}", f"/v1/kv/tree/{encoded}"):
            answer = raw_get(target.server.port, path)
            assert answer.startswith(b"HTTP/1.1 404"), f"{path}: {answer[:200]!r}"
            assert b"root:" not in answer
        assert code_of(target.send(CHAT, BODIES[CHAT] | {"model": name})) == "model_not_found"
    assert list(victim.iterdir()) == [victim / "kept"]


def raw_get(port: int, path: str) -> bytes:
    """Gets a path as it is written, which HTTP clients would shorten."""
    key = headers("bombs")["authorization"]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        lines = [f"GET {path} HTTP/1.1", "host: localhost", f"authorization: {key}", "connection: close", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def with_urls(url: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns requests that name a URL wherever some server fetches one."""

    def content(part: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [part]}]

    return {
        "image": (CHAT, {"messages": content({"type": "image_url", "image_url": {"url": url}})}),
        "video": (CHAT, {"messages": content({"type": "video_url", "video_url": {"url": url}})}),
        "audio": (CHAT, {"messages": content({"type": "audio_url", "audio_url": {"url": url}})}),
        "text": (CHAT, {"messages": content({"type": "text", "text": f"![x]({url}) <img src='{url}'>"})}),
        "TGI's image": (GENERATE, {"inputs": f"![]({url})What is this?"}),
        "input image": (RESPONSES, {"input": content({"type": "input_image", "image_url": url})}),
        "input file": (RESPONSES, {"input": content({"type": "input_file", "file_url": url})}),
        "MCP": (RESPONSES, {"tools": [{"type": "mcp", "server_label": "x", "server_url": url}]}),
        "Anthropic's image": (
            ANTHROPIC,
            {"messages": content({"type": "image", "source": {"type": "url", "url": url}})},
        ),
        "Anthropic's document": (
            ANTHROPIC,
            {"messages": content({"type": "document", "source": {"type": "url", "url": url}})},
        ),
        "Anthropic's MCP": (ANTHROPIC, {"mcp_servers": [{"type": "url", "url": url, "name": "x"}]}),
        "reference": (CHAT, {"guided_json": {"$ref": url}}),
        "schema": (CHAT, {"guided_json": {"$schema": url, "$id": url, "type": "integer"}}),
        "schema of a tool": (
            CHAT,
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": url}}}],
                "tool_choice": "required",
            },
        ),
        "import": (CHAT, {"guided_grammar": f'start: A\n%import "{url}"'}),
        "model": (CHAT, {"model": url}),
        "adapter": (GENERATE, {"parameters": {"adapter_id": url}}),
        "transfer": (CHAT, {"kv_transfer_params": {"remote_host": "127.0.0.1", "remote_port": 1}}),
    }


def test_no_request_makes_the_server_fetch_an_address(target: Target) -> None:
    """Addresses in requests: vLLM fetched those of images (CVE-2025-6242), TGI those in a prompt (CVE-2026-0599)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        codes = target.codes(with_urls(url))
        site = url.removeprefix("http://")
        target.send(CHAT, BODIES[CHAT], referer=url, forwarded=f"host={site}", **{"x-forwarded-host": site})
        with pytest.raises(BlockingIOError):
            listener.accept()
    # An address that is only text, or names a schema that is not needed, is no reason to refuse.
    assert {case for case, code in codes.items() if code == 200} == {"text", "TGI's image", "schema"}, codes
