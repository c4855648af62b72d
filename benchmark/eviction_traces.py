"""Synthetic traffic from seeds, for comparing eviction policies in addition to a real trace.

`TRACES` maps each name to a function that yields one list of block numbers per request. Requests that have a number in
common share the prefix up to it.
"""

import heapq
import random
from itertools import islice

NUM_REQUESTS = 12_000


class Blocks:
    """Returns unused block numbers, starting at 0."""

    def __init__(self):
        self.num_given = 0

    def __call__(self, count):
        self.num_given += count
        return list(range(self.num_given - count, self.num_given))


def chats(rng, rate, turns, pause, first, more, prompts=None):
    """Yields requests of conversations, of which `rate` begin per second. Each has the history and one new block.

    `turns` and `first` are called for each conversation and return its number of turns and of blocks in the first
    message, which follows one of `prompts` if given. `pause` and `more` are called for each turn and return the seconds
    before it and its number of new blocks.
    """
    new, queue, now, num_begun = Blocks(), [], 0.0, 0
    shared = prompts(new) if prompts else [[]]
    while True:
        while not queue or queue[0][0] > now:
            history = [*rng.choice(shared), *new(first())]
            heapq.heappush(queue, (now, num_begun, turns(), history))
            num_begun += 1
            now += rng.expovariate(rate)
        time, number, left, history = heapq.heappop(queue)
        yield history + new(1)
        if left > 1:
            heapq.heappush(queue, (time + pause(), number, left - 1, history + new(more())))


def popular(rng, count, low, high):
    """Returns a function that makes `count` prompts of `low` to `high` blocks, repeated by Zipf's law."""

    def prompts(new):
        distinct = [new(rng.randint(low, high)) for _ in range(count)]
        return [prompt for rank, prompt in enumerate(distinct, 1) for _ in range(max(1, 60 // rank))]

    return prompts


def short_pauses(rng):
    return chats(
        rng,
        rate=1,
        turns=lambda: 1 + int(rng.expovariate(0.4)),
        pause=lambda: rng.expovariate(1 / 60),
        first=lambda: rng.randint(1, 6),
        more=lambda: rng.randint(1, 2),
    )


def long_pauses(rng):
    return chats(
        rng,
        rate=0.4,
        turns=lambda: 2 + int(rng.expovariate(0.3)),
        pause=lambda: rng.lognormvariate(7, 1),
        first=lambda: rng.randint(4, 30),
        more=lambda: rng.randint(1, 4),
    )


def mixed_pauses(rng):
    return chats(
        rng,
        rate=0.4,
        turns=lambda: 1 + int(rng.expovariate(0.5)),
        pause=lambda: rng.expovariate(1 / 20) if rng.random() < 0.5 else rng.lognormvariate(6.5, 0.8),
        first=lambda: rng.randint(2, 40),
        more=lambda: rng.randint(1, 4),
    )


def agents(rng):
    """Many turns, with seconds between them."""
    return chats(
        rng,
        rate=0.1,
        turns=lambda: 5 + int(rng.expovariate(0.1)),
        pause=lambda: rng.expovariate(1 / 8),
        first=lambda: rng.randint(10, 20),
        more=lambda: rng.randint(1, 6),
    )


def one_shots(rng):
    """Single questions, each after one of 60 long prompts."""
    return chats(
        rng,
        rate=1,
        turns=lambda: 1,
        pause=lambda: 1,
        first=lambda: rng.randint(1, 8),
        more=lambda: 1,
        prompts=popular(rng, 60, 6, 30),
    )


def tool_use(rng):
    """A few turns after one of 40 long prompts."""
    return chats(
        rng,
        rate=0.3,
        turns=lambda: 1 + int(rng.expovariate(0.35)),
        pause=lambda: rng.expovariate(1 / 40),
        first=lambda: rng.randint(1, 12),
        more=lambda: rng.randint(1, 4),
        prompts=popular(rng, 40, 6, 16),
    )


def documents(rng, choose):
    """Single questions about one of 1,500 documents. `choose` returns the document for a request's number."""
    new = Blocks()
    texts = [new(rng.randint(4, 40)) for _ in range(1_500)]
    for number in range(NUM_REQUESTS):
        yield texts[choose(number)] + new(1)


def uniform(rng):
    return documents(rng, lambda _: rng.randrange(1_500))


def zipf(rng):
    weights = [1 / rank for rank in range(1, 1_501)]
    return documents(rng, lambda _: rng.choices(range(1_500), weights)[0])


def cycle(rng):
    return documents(rng, lambda number: number % 300)


def recent(rng):
    """Three in five requests continue an earlier one, more likely a recent one, so that LRU is nearly optimal."""
    new, histories = Blocks(), []
    while True:
        if histories and rng.random() < 0.6:
            age = min(int(rng.paretovariate(0.8)), len(histories))
            history = histories.pop(-age) + new(2)
        else:
            history = new(rng.randint(2, 20))
        histories.append(history)
        yield list(history)


def scan(_):
    """No block is requested twice."""
    new = Blocks()
    while True:
        yield new(20)


def change(rng):
    """Traffic with long pauses, followed by traffic with short ones."""
    before = list(islice(long_pauses(rng), NUM_REQUESTS // 2))
    offset = max(map(max, before)) + 1
    yield from before
    for request in short_pauses(rng):
        yield [block + offset for block in request]


TRACES = {
    make.__name__: make
    for make in (
        short_pauses, long_pauses, mixed_pauses, agents, one_shots, tool_use, uniform, zipf, cycle, recent, scan,
        change,
    )
}  # fmt: skip


def requests(name):
    """Returns the trace of that name, which is the same every time."""
    return list(islice(TRACES[name](random.Random(name)), NUM_REQUESTS))
