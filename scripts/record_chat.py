"""Draws docs/chat.svg, a terminal with a real start and a real streamed answer."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import httpx
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))

from harness import ROOT, serving, sse_events

QUESTION = "Give me three short tips for a long train journey."
WIDTH = 100


def main() -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("$ make serve", style="bold"))
    with serving() as server:
        for line in server.banner:
            console.print(Text(line.rstrip().replace(str(server.port), "3000")))
        messages = [{"role": "user", "content": QUESTION}]
        console.print()
        console.print(Text("$ python", style="bold"))
        console.print(Text('>>> client = OpenAI(base_url="http://127.0.0.1:3000/v1", api_key="none")'))
        console.print(Text(f'>>> ask("{QUESTION}")    # streams client.chat.completions', style=""))
        body = {"messages": messages, "stream": True, "temperature": 0, "max_tokens": 160}
        body |= {"stream_options": {"include_usage": True}}
        text, usage = "", {}
        with httpx.stream("POST", f"{server.base_url}/v1/chat/completions", json=body, timeout=60) as stream:
            for event in sse_events(stream.iter_lines()):
                if isinstance(event, dict):
                    usage = event.get("usage") or usage
                    text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        console.print(Text(text, style="green"))
        console.print(Text(json.dumps(usage), style="dim"))
    svg = console.export_svg(title="trunkline")
    # Without the font downloads, the viewer's own monospace font is used.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (ROOT / "docs/chat.svg").write_text(svg)


if __name__ == "__main__":
    main()
