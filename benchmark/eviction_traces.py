"""Traffic made up from seeds, on which policies of eviction are compared beside the real trace.

python benchmark/eviction_traces.py FOLDER

`TRACES` names each with a function that makes it: lists of block numbers, one a request, where equal numbers mean an
equal prefix up to there. The program writes them in the form of the Mooncake traces, one FOLDER/NAME.jsonl each.
"""

import heapq
import json
import random
import sys
from itertools import islice
from pathlib import Path

NUM_REQUESTS = 12_000


class Blocks:
    """Numbers that nothing had before, from 0."""

    def __init__(self):
        self.num_given = 0

    def __call__(self, count):
        self.num_given += count
        return list(range(self.num_given - count, self.num_given))


def chats(rng, rate, turns, pause, first, more, prompts=None):
    """Conversations, `rate` begin a second; each request has the history and a block of its own.

    Drawn anew for each conversation: how many `turns` it has, of how many blocks its `first` is (after one of
    `prompts`, if given); for each turn: seconds of `pause` and how many blocks come in `more`.
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
    """Of `count` prompts of `low` to `high` blocks, those that are sent: by Zipf's law."""

    def prompts(new):
        made = [new(rng.randint(low, high)) for _ in range(count)]
        return [prompt for rank, prompt in enumerate(made, 1) for _ in range(max(1, 60 // rank))]

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
    """They call again within seconds."""
    return chats(
        rng,
        rate=0.1,
        turns=lambda: 5 + int(rng.expovariate(0.1)),
        pause=lambda: rng.expovariate(1 / 8),
        first=lambda: rng.randint(10, 20),
        more=lambda: rng.randint(1, 6),
    )


def one_shots(rng):
    """One question each behind one of sixty long prompts."""
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
    """A few calls behind one of forty long prompts."""
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
    """A question behind the document, one of 1,500, that `choose` names for the request of a number."""
    new = Blocks()
    made = [new(rng.randint(4, 40)) for _ in range(1_500)]
    for number in range(NUM_REQUESTS):
        yield made[choose(number)] + new(1)


def uniform(rng):
    return documents(rng, lambda _: rng.randrange(1_500))


def zipf(rng):
    weights = [1 / rank for rank in range(1, 1_501)]
    return documents(rng, lambda _: rng.choices(range(1_500), weights)[0])


def cycle(rng):
    return documents(rng, lambda number: number % 300)


def recent(rng):
    """Three of five go on with an earlier one, the likelier the less came since: LRU is next to the best."""
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
    """Nothing comes twice."""
    new = Blocks()
    while True:
        yield new(20)


def change(rng):
    """First long pauses, then short ones."""
    before = list(islice(long_pauses(rng), NUM_REQUESTS // 2))
    offset = max(map(max, before)) + 1
    yield from before
    for request in short_pauses(rng):
        yield [block + offset for block in request]


TRACES = {
    make.__name__: make
    for make in (
        short_pauses,
        long_pauses,
        mixed_pauses,
        agents,
        one_shots,
        tool_use,
        uniform,
        zipf,
        cycle,
        recent,
        scan,
        change,
    )
}


def requests(name):
    """The trace of that name: the same each time."""
    return list(islice(TRACES[name](random.Random(name)), NUM_REQUESTS))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in TRACES:
        lines = (json.dumps({"hash_ids": request}) for request in requests(name))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
