"""OpenVINO GenAI's continuous batching pipeline on a GGUF, for the raw and the HTTP measurements."""

import numpy as np
import openvino_genai as genai
from openvino import Tensor

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

    def add(self, ids, max_tokens, *, ignore_eos=True):
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
