"""A thin streaming HTTP server around OpenVINO GenAI's continuous batching pipeline.

OpenVINO's own model server runs the same pipeline. This server adds as little as possible, to the peer's advantage: one
thread steps the pipeline, which releases the interpreter while it computes, and passes new tokens to an asyncio loop
with minimal HTTP. Tokens are sent as text once their bytes form whole characters.
"""

import asyncio
import json
import queue
import sys
import threading

import numpy as np
import openvino_genai as genai
from openvino import Tensor

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BROKEN = "\N{REPLACEMENT CHARACTER}"
# Token budget of a step. A larger one makes running streams wait longer for a long prompt.
STEP_TOKENS = 512


class Engine:
    def __init__(self, gguf, cache_gb, max_sequences, threads):
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gb
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.max_num_seqs = max_sequences
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": threads}
        self.pipeline = genai.ContinuousBatchingPipeline(gguf, scheduler, "CPU", properties)
        self.next_id = 0

    def add(self, ids, max_tokens, *, ignore_eos):
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = ignore_eos
        config.do_sample = False
        self.next_id += 1
        return self.pipeline.add_request(self.next_id, Tensor(np.array([ids], dtype=np.int64)), config)


def new_tokens(handle):
    """Returns the output tokens since the last call."""
    ids = []
    while handle.can_read():
        for output in handle.read().values():
            ids += output.generated_ids
    return ids


class Answer:
    """One open request, with a queue of its new tokens."""

    def __init__(self, loop, ids, fields):
        self.loop, self.ids, self.fields = loop, ids, fields
        self.updates = asyncio.Queue()
        self.handle = None
        self.closed = False

    def put(self, ids, done):
        self.loop.call_soon_threadsafe(self.updates.put_nowait, (ids, done))


class Stepper(threading.Thread):
    """The thread that owns the pipeline. It admits requests, runs steps and passes on tokens, and waits when idle."""

    def __init__(self, engine):
        super().__init__(daemon=True)
        self.engine = engine
        self.waiting = queue.SimpleQueue()
        self.running = []

    def run(self):
        while True:
            self.admit()
            self.engine.pipeline.step()
            still = []
            for answer in self.running:
                ids = new_tokens(answer.handle)
                done = answer.handle.get_status() != genai.GenerationStatus.RUNNING
                if ids or done:
                    answer.put(ids, done)
                if answer.closed and not done:
                    answer.handle.stop()
                elif not done:
                    still.append(answer)
            self.running = still

    def admit(self):
        while not self.waiting.empty() or not (self.running or self.engine.pipeline.has_non_finished_requests()):
            answer = self.waiting.get()
            fields = answer.fields
            ignore_eos = bool(fields.get("ignore_eos"))
            answer.handle = self.engine.add(answer.ids, fields["max_tokens"], ignore_eos=ignore_eos)
            self.running.append(answer)


class Server:
    def __init__(self, engine):
        self.stepper = Stepper(engine)
        self.tokenizer = engine.pipeline.get_tokenizer()
        self.stepper.start()

    async def serve(self, port):
        server = await asyncio.start_server(self.connection, "127.0.0.1", port, limit=1 << 24, backlog=1024)
        await server.serve_forever()

    async def connection(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
            fields = json.loads(await reader.readexactly(int(headers["content-length"])))
            await self.answer(head.split()[1], fields, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def encode(self, path, fields):
        if path == "/v1/completions":
            prompt = fields["prompt"]
            if isinstance(prompt, list):
                return prompt
        else:
            prompt = self.tokenizer.apply_chat_template(fields["messages"], add_generation_prompt=True)
        return self.tokenizer.encode(prompt, add_special_tokens=False).input_ids.data[0].tolist()

    async def answer(self, path, fields, writer):
        answer = Answer(asyncio.get_running_loop(), self.encode(path, fields), fields)
        self.stepper.waiting.put(answer)
        writer.write(OK)
        chat = path != "/v1/completions"
        held, total, done = [], 0, False
        try:
            while not done:
                ids, done = await answer.updates.get()
                total += len(ids)
                held += ids
                text = self.tokenizer.decode(held) if held else ""
                if text.endswith(BROKEN) and not done:
                    text = ""
                else:
                    held = []
                choice = {"index": 0, "finish_reason": "length" if done else None}
                choice |= {"delta": {"content": text}} if chat else {"text": text}
                writer.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
                await writer.drain()
        finally:
            answer.closed = True
        usage = {"prompt_tokens": len(answer.ids), "completion_tokens": total}
        writer.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        await writer.drain()


def main():
    gguf, cache_gb, max_sequences, threads, port = sys.argv[1], *map(int, sys.argv[2:])
    asyncio.run(Server(Engine(gguf, cache_gb, max_sequences, threads)).serve(port))


if __name__ == "__main__":
    main()
