"""The order of steps, copies and disk through events, on a device that delays all work."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tests import running
from tests.cuda.tier_world import BLOCK_SIZE, NUM_LAYERS, MemoryFiles, World, content
from tests.plans import new_block_restore, new_restore
from tests.tiers import matrix
from trunkline_server.backends.cuda import departures
from trunkline_server.backends.cuda.host_pool import least_bytes, piece_sizes, pinned_blocks
from trunkline_server.backends.cuda.outcomes import Outcomes
from trunkline_server.backends.cuda.places import PlaceTable
from trunkline_server.backends.cuda.step_input import Entry
from trunkline_server.backends.cuda.worker import Worker
from trunkline_server.errors import DoesNotFit, PlanError

# Two layers are sent together; a staging buffer holds two blocks.
PIECE_BYTES = 384
SIZES = {"group_bytes": 2 * PIECE_BYTES, "staging_bytes": 2 * NUM_LAYERS * PIECE_BYTES, "min_layered_rows": 1}


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the writer of blocks run only when the test says so."""
    monkeypatch.setattr(departures, "STORE_WAIT_S", 0.0)


def make(seed: int = 1, num_places: int = 8, num_slots: int | None = None, **changes: Any) -> World:
    return World(seed, num_places=num_places, num_slots=num_slots, **{**SIZES, **changes})


def make_with_disk(num_places: int = 8) -> tuple[World, MemoryFiles]:
    """Makes a world with a disk of 8 slots that never fails."""
    world = make(num_places=num_places, num_slots=8)
    assert world.files is not None
    world.files.refuses = world.files.loses = 0.0
    return world, world.files


@pytest.mark.parametrize(
    ("sizes", "seed"),
    matrix(
        [(6, None, 2, 2, 1), (6, None, 2, 99, 64), (6, 11, 2, 99, 1), (6, 11, 4, 0, 64), (2, 11, 3, 0, 1)], range(8)
    ),
)
def test_steps_read_what_was_computed_under_any_plan(sizes: tuple[int, int | None, int, int, int], seed: int) -> None:
    num_places, num_slots, most_restored, unfinished_layers, min_layered_rows = sizes
    world = make(
        seed, num_places, num_slots, most_restored=most_restored, max_unfinished_bytes=unfinished_layers * PIECE_BYTES,
        min_layered_rows=min_layered_rows,
    )  # fmt: skip
    if num_slots is not None:
        world.fill_disk(num_slots - 3)
    for _ in range(300):
        world.do_something()
    world.settle()
    # All stored blocks are read once more.
    world.begin_step(0, 99, 0)
    world.settle()
    assert world.num_restored >= 5 and world.num_read >= 100
    # No place is in use any more.
    world.device.wait()
    assert world.tiers._places.num_pinned() == 0


def store(world: World, count: int) -> list[int]:
    """Computes and stores `count` blocks; returns their slots."""
    before = set(world.slots)
    world.begin_step(count, 0, count)
    world.steps[-1].fails = False
    world.settle()
    slots = [slot for slot in world.slots if slot not in before]
    assert len(slots) == count
    return slots


def entries(block_ids: list[int], num_rows: int) -> list[Entry]:
    """Returns a step of `num_rows` rows in the last of these blocks."""
    return [Entry([0] * num_rows, BLOCK_SIZE * (len(block_ids) - 1), block_ids, [])]


class Recorder:
    """Replaces `StepRunner`; records its calls, and the waits of steps at each layer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[tuple[bool, int]] = []
        self.waits: list[int] = []

    def run(self, entries: list[Entry], *, is_launched: bool = False) -> torch.Tensor:
        self.calls.append((is_launched, self.world.device.steps.num_waits))
        for layer in range(NUM_LAYERS if is_launched else 0):
            self.world.tiers.gates.enter(layer)
            self.waits.append(self.world.device.steps.num_waits)
        return torch.zeros(0)


def test_a_restore_is_reported_early_and_large_steps_wait_layer_by_layer() -> None:
    world = make(min_layered_rows=10)
    store(world, 2)
    block_id, runner = world.free[-1], Recorder(world)
    world.begin_restore(1)
    for worker in world.workers:
        worker.drain()
    world.take_outcomes()
    assert world.blocks[block_id] >= 0, "it is the router's again"
    before = world.device.steps.num_waits
    # Another sequence's step does not wait, a small one waits for all layers first, a large one before layers 0, 2 and
    # 4.
    world.tiers.run(runner, entries([9, 10], 16))  # type: ignore[arg-type]
    world.tiers.run(runner, entries([block_id, 10], 9))  # type: ignore[arg-type]
    world.tiers.run(runner, entries([block_id, 10], 10))  # type: ignore[arg-type]
    assert runner.calls == [(False, before), (False, before + 1), (True, before + 1)]
    assert runner.waits == [before + 2, before + 2, before + 3, before + 3, before + 4]
    world.device.wait()
    world.tiers.run(runner, entries([block_id, 10], 10))  # type: ignore[arg-type]
    assert runner.calls[-1] == (False, before + 4), "all is there"


def test_the_missing_part_of_a_reported_restore_is_bounded() -> None:
    """Two of five layers are sent together. Two blocks of two layers may be missing, so two groups have arrived."""
    world = make(max_unfinished_bytes=2 * 2 * PIECE_BYTES)
    store(world, 2)
    block_ids = world.free[-2:]
    world.begin_restore(2)
    for worker in world.workers:
        worker.drain()
    (arrival,) = world.tiers._arrivals.of(block_ids)
    # This device does nothing at random, so asking changes nothing.
    assert [event.is_reached() for event in arrival.events] == [True, True, False]


def test_at_most_half_of_the_places_wait_for_the_disk() -> None:
    world, _ = make_with_disk(num_places=4)
    world.begin_step(3, 0, 3)
    world.steps[-1].fails = False
    world.settle()
    assert len(world.slots) == 2 and world.num_contents == 3


def test_a_slot_that_another_server_wrote_is_read_from_the_disk() -> None:
    world, files = make_with_disk(num_places=4)
    (slot,) = store(world, 1)
    # The router put another block there.
    world.slots[slot] = 77
    bytes_77 = torch.cat([content(77, layer, PIECE_BYTES) for layer in range(NUM_LAYERS)])
    files.blocks[slot] = b"%15d" % 77, bytes(bytes_77.numpy())
    world.begin_restore(1)
    world.settle()
    world.begin_step(0, 9, 0)
    world.settle()
    assert (world.num_restored, files.num_reads) == (1, 1)


def test_a_queued_restore_holds_no_places() -> None:
    """The second restore has all places but one block, and is done once the first has got a place."""
    world, _ = make_with_disk(num_places=4)
    slots = [slot for _ in range(3) for slot in store(world, 2)]
    # Pinned memory has the four blocks that were stored last.
    first, second = slots[:1], [*slots[2:], slots[1]]
    wanted = [
        new_block_restore(slot, 6 + index, b"%15d" % world.slots[slot]) for index, slot in enumerate(first + second)
    ]
    world.tiers.restore(new_restore(1, wanted[:1]))
    world.tiers.restore(new_restore(2, wanted[1:]))
    # The worker detects a restore that waits for a place that nothing can free.
    world.worker("kv-disk").drain()
    transfers = world.tiers.take_outcomes()
    assert transfers is not None
    assert [(one.restore_id, one.num_blocks) for one in transfers.restores] == [(1, 1), (2, 5)]


def test_a_slot_in_a_transfer_is_refused() -> None:
    world = make(num_slots=8)
    world.begin_step(1, 0, 1)
    (slot,) = world.storing
    with pytest.raises(PlanError, match=f"slot {slot} is in a transfer"):
        world.tiers.discard([slot])
    with pytest.raises(PlanError, match=f"restore 5: slot {slot} is in a transfer"):
        world.tiers.restore(new_restore(5, [new_block_restore(slot, 3, bytes(16))]))
    world.settle()


def test_reset_ends_everything_and_frees_all_places() -> None:
    """Covers unfinished steps, and stores and restores that have not begun."""
    world, _ = make_with_disk()
    store(world, 2)
    world.begin_restore(1)
    world.begin_step(2, 1, 2)
    world.tiers.reset()
    world.device.wait()
    assert world.tiers.take_outcomes() is None
    assert world.tiers._places.num_pinned() == 0
    # Blocks that were on disk before are found again.
    world.restores.clear()
    world.begin_restore(1)
    for worker in world.workers:
        worker.drain()
    transfers = world.tiers.take_outcomes()
    assert transfers is not None and transfers.restores[0].num_blocks == 1


def test_an_exception_in_a_tier_thread_is_raised_by_take_outcomes() -> None:
    outcomes = Outcomes()
    worker = Worker("test", outcomes.fail)
    done: list[int] = []
    worker.post(lambda: done.append(1 // 0))
    worker.post(lambda: done.append(2))
    worker.drain()
    assert done == [2]
    outcomes.wait(60.0)
    with pytest.raises(ZeroDivisionError):
        outcomes.take()


def test_memory_is_pinned_in_powers_of_two() -> None:
    gib = 1 << 30
    assert piece_sizes(2 * gib + 700, 300) == [gib, gib, 512]
    assert piece_sizes(gib // 2 + gib // 8, 8 << 20) == [gib // 2, gib // 8]
    # A block that is larger than a piece gets a piece of its own.
    assert piece_sizes(5 * gib, gib + 1) == [2 * gib, 2 * gib]
    assert piece_sizes(100, 101) == []


@pytest.mark.parametrize("block_bytes", [1, 384, 512, 513, (1 << 30) - 1, 1 << 30, (1 << 30) + 1])
def test_the_least_that_is_pinned_has_room_for_a_block(block_bytes: int) -> None:
    least = least_bytes(block_bytes)
    assert piece_sizes(least, block_bytes) == [least]
    assert piece_sizes(least - 1, block_bytes) == []


def test_memory_without_room_for_a_block_is_refused_with_the_minimum() -> None:
    def blocks(num_bytes: int) -> list[torch.Tensor]:
        return pinned_blocks(
            num_bytes, num_layers=3, piece_bytes=200, available_bytes=4 << 30,
            pin=lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8),
        )  # fmt: skip

    # It has room for a block, but not for the power of two in which one is pinned.
    with pytest.raises(DoesNotFit) as raised:
        blocks(1000)
    assert str(raised.value) == (
        "`--kv-host-size` is 1000 bytes, but a block of this model has 600 and needs 1024 of pinned memory; hint: "
        "allow for at least a few hundred blocks"
    )
    assert len(blocks(1024)) == 1


def test_a_refused_allocation_is_a_one_line_error() -> None:
    def pin(num_bytes: int) -> torch.Tensor:
        if num_bytes < 1 << 20:
            raise RuntimeError("CUDA error: out of memory")
        return torch.zeros(num_bytes, dtype=torch.uint8)

    with pytest.raises(DoesNotFit, match=r"takes 1 MiB .* has 4096 MiB available, .* refused after 1 MiB; hint: lower"):
        pinned_blocks((3 << 19), num_layers=2, piece_bytes=256, pin=pin, available_bytes=4 << 30)


def test_a_block_whose_last_token_was_not_sampled_is_not_stored() -> None:
    """The previous step should have sampled the token, but sampled nothing."""
    world, files = make_with_disk()
    world.begin_step(1, 0, 1)
    (step,) = world.steps
    step.fails = False
    assert step.stores is not None
    token_ids = step.stores.blocks[0].token_ids
    assert isinstance(token_ids, list)
    token_ids.pop()
    world.settle()
    assert (world.slots, files.blocks) == ({}, {})


def test_a_waiter_gets_a_kept_place_when_its_last_pin_ends() -> None:
    """The place is not free then, but it may be evicted."""
    table = PlaceTable([torch.zeros(1)], evicts=True)
    place = table.take(0)
    assert place is not None
    table.keep(0, place, b"")
    is_asking = threading.Event()
    taken: list[int | None] = []

    def is_over() -> bool:
        # Called with the table's lock, which only waiting releases.
        is_asking.set()
        return False

    waiter = threading.Thread(target=lambda: taken.append(table.take(1, is_over)), daemon=True)
    waiter.start()
    assert is_asking.wait(running.DEADLINE_S)
    table.unpin([place])
    waiter.join(running.DEADLINE_S)
    assert taken == [place]
