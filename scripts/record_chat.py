"""Draws docs/chat.svg, a terminal with a real start and two turns of a real chat, the second from the KV cache."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))

from harness import ROOT, Trunkline, serving, sse_events

QUESTIONS = ("What is the capital of Norway?", "Thank you! What should I pack?")
WIDTH = 100


def ask(server: Trunkline, messages: list[dict[str, str]]) -> tuple[str, dict[str, Any]]:
    """Streams an answer; returns its text and the usage that the server reports."""
    body = {"messages": messages, "stream": True, "temperature": 0, "max_tokens": 160}
    body |= {"stream_options": {"include_usage": True}}
    text, usage = "", {}
    with httpx.stream("POST", f"{server.base_url}/v1/chat/completions", json=body, timeout=60) as stream:
        for event in sse_events(stream.iter_lines()):
            if isinstance(event, dict):
                usage = event.get("usage") or usage
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return text, usage


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ make serve", style="bold"))
    with serving() as server:
        for line in server.banner:
            console.print(Text(line.rstrip().replace(str(server.port), "3000")))
        console.print()
        console.print(Text("$ python", style="bold"))
        console.print(Text('>>> client = OpenAI(base_url="http://127.0.0.1:3000/v1", api_key="none")'))
        messages: list[dict[str, str]] = []
        for question in QUESTIONS:
            comment = "the conversation so far is in the KV cache" if messages else "streams client.chat.completions"
            messages.append({"role": "user", "content": question})
            text, usage = ask(server, messages)
            messages.append({"role": "assistant", "content": text})
            console.print(Text(f'>>> ask("{question}")    # {comment}'))
            console.print(Text(text, style="green"))
            counts = Text(json.dumps(usage), style="dim")
            counts.highlight_regex(r'"cached_tokens": \d+', "bold not dim")
            console.print(counts)
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    svg = console.export_svg(title="trunkline")
    # Without the font downloads, the viewer's own monospace font is used.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (ROOT / "docs/chat.svg").write_text(svg)


if __name__ == "__main__":
    main()
