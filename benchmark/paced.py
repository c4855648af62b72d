"""A server of the OpenAI API whose times are known, to check load generators with.

python benchmark/paced.py [--port 8765] [--ttft-ms 200] [--itl-ms 20]

It streams the first token of a request `--ttft-ms` after its head has come, and each further one `--itl-ms` after the
one before. A prompt has a token for each word.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any


def body_of(request: dict[str, Any]) -> tuple[str, int]:
    """Returns the kind of an answer's objects, and the number of tokens of the prompt."""
    if "messages" not in request:
        prompt = request["prompt"]
        return "text_completion", len(prompt if isinstance(prompt, list) else prompt.split())
    texts = (json.dumps(message["content"]) for message in request["messages"])
    return "chat.completion.chunk", sum(len(text.split()) for text in texts)


def event(data: str) -> bytes:
    """Returns an event as a chunk of a body."""
    text = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


async def stream(
    writer: asyncio.StreamWriter, request: dict[str, Any], begin: float, pace: tuple[float, float]
) -> None:
    kind, num_prompt = body_of(request)
    count = request.get("max_tokens") or request.get("max_completion_tokens") or 16
    fixed = {"id": "paced", "object": kind, "created": 0, "model": "paced"}
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    for number in range(count):
        at = begin + pace[0] + number * pace[1]
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        output = {"delta": {"content": " a"}} if "messages" in request else {"text": " a"}
        choice = {"index": 0, "finish_reason": "length" if number + 1 == count else None, **output}
        writer.write(event(json.dumps(fixed | {"choices": [choice]})))
    usage = {"prompt_tokens": num_prompt, "completion_tokens": count, "total_tokens": num_prompt + count}
    writer.write(event(json.dumps(fixed | {"choices": [], "usage": usage})) + event("[DONE]") + b"0\r\n\r\n")
    await writer.drain()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: tuple[float, float]) -> None:
    try:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            begin = asyncio.get_running_loop().time()
            lengths = [int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")]
            body = await reader.readexactly(sum(lengths))
            if body:
                await stream(writer, json.loads(body), begin, pace)
                continue
            models = json.dumps({"object": "list", "data": [{"id": "paced", "object": "model"}]})
            writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(models)}\r\n\r\n{models}".encode())
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--itl-ms", type=float, default=20)
    args = parser.parse_args()
    pace = (args.ttft_ms / 1e3, args.itl_ms / 1e3)
    server = await asyncio.start_server(lambda r, w: serve(r, w, pace), "127.0.0.1", args.port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
