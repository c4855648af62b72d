"""llama.cpp through its C interface: prompts in batches of 512, then greedy steps of one token per sequence."""

import ctypes
import sys
import time

import llama_cpp as c
import numpy as np
from raw import serve

BATCH = 512
CONTEXT = 8192


class Engine:
    def __init__(self, path, threads):
        c.llama_backend_init()
        self.model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        assert self.model, f"cannot load {path}"
        self.num_vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.threads = threads
        self.context, self.num_sequences = None, 0
        self.batch = c.llama_batch_init(BATCH, 0, 1)

    def open(self, num_sequences):
        """Prepares an empty context for `num_sequences` before the measurement. It is kept for the next call."""
        if num_sequences != self.num_sequences:
            if self.context:
                c.llama_free(self.context)
            settings = c.llama_context_default_params()
            settings.n_ctx = CONTEXT * num_sequences if num_sequences == 1 else 1024 * num_sequences
            settings.n_batch = settings.n_ubatch = BATCH
            settings.n_threads = settings.n_threads_batch = self.threads
            settings.n_seq_max = num_sequences
            self.context = c.llama_init_from_model(self.model, settings)
            assert self.context, "cannot make a context"
            self.num_sequences = num_sequences
        c.llama_memory_clear(c.llama_get_memory(self.context), True)

    def add(self, token, position, sequence, *, sample):
        i = self.batch.n_tokens
        self.batch.token[i], self.batch.pos[i] = token, position
        self.batch.seq_id[i][0], self.batch.n_seq_id[i] = sequence, 1
        self.batch.logits[i] = sample
        self.batch.n_tokens += 1

    def decode(self):
        assert c.llama_decode(self.context, self.batch) == 0

    def best(self, row):
        logits = c.llama_get_logits_ith(self.context, row)
        array = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.num_vocabulary,))
        return int(array.argmax())

    def generate(self, prompts, max_tokens, clock):
        self.open(len(prompts))
        clock.begin = time.monotonic()
        newest = [0] * len(prompts)
        rows = self.prefill(prompts)
        for sequence, prompt_rows in rows:
            newest[sequence] = prompt_rows
            clock.token(sequence)
        for i in range(1, max_tokens):
            self.batch.n_tokens = 0
            for sequence, prompt in enumerate(prompts):
                self.add(newest[sequence], len(prompt) + i - 1, sequence, sample=True)
            self.decode()
            newest = [self.best(row) for row in range(len(prompts))]
            now = time.monotonic()
            for sequence in range(len(prompts)):
                clock.token(sequence, now)

    def prefill(self, prompts):
        """Computes all prompts, and yields (sequence, first output token) as each is finished."""
        pending = []
        self.batch.n_tokens = 0
        for sequence, prompt in enumerate(prompts):
            for position, token in enumerate(prompt):
                last = position == len(prompt) - 1
                if last:
                    pending.append((sequence, self.batch.n_tokens))
                self.add(token, position, sequence, sample=last)
                if self.batch.n_tokens == BATCH:
                    yield from self.flush(pending)
        if self.batch.n_tokens:
            yield from self.flush(pending)

    def flush(self, pending):
        self.decode()
        done = [(sequence, self.best(row)) for sequence, row in pending]
        pending.clear()
        self.batch.n_tokens = 0
        yield from done


if __name__ == "__main__":
    serve(Engine(sys.argv[1], int(sys.argv[2])).generate)
