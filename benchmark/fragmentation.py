"""Share of unused slots in KV blocks for a trace: `make bench NAME=fragmentation TRACE=trace.jsonl.gz`.

A sequence has blocks for its computed tokens and the next one, and all but the last block are full. Each request is
weighted by its decode steps, because it holds its blocks that long. Shared blocks are counted once per request, which
overstates the waste. For comparison, PagedAttention (arXiv:2309.06180) reports less than 4 % for blocks of 16.
"""

from __future__ import annotations

import argparse
import gzip
import json


def wasted(requests: list[tuple[int, int]], block_size: int) -> float:
    """Returns the share of allocated slots that are unused."""
    empty = allocated = 0
    for num_prompt, num_output in requests:
        for length in range(num_prompt, num_prompt + num_output):
            blocks = -(-(length + 1) // block_size) * block_size
            allocated += blocks
            empty += blocks - length
    return empty / allocated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", help="gzipped file with `input_length` and `output_length` of one request per line")
    args = parser.parse_args()
    with gzip.open(args.trace, "rt") as lines:
        records = [json.loads(line) for line in lines]
    requests = [(record["input_length"], record["output_length"]) for record in records]
    print(f"{len(requests)} requests")
    for block_size in (16, 64, 128):
        print(f"blocks of {block_size}: {100 * wasted(requests, block_size):.2f} % of slots are unused")


if __name__ == "__main__":
    main()
