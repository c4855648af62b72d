"""Late masks for backends that are written in Python."""

from __future__ import annotations

import threading


class LateMasks:
    """Implements `LateMasks` of `interface.py`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._masks: dict[int, bytes] = {}
        self._is_closed = False

    def tell(self, sequence_id: int, mask: bytes) -> None:
        with self._changed:
            self._masks[sequence_id] = mask
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def has(self, sequence_id: int) -> bool:
        """Returns True if `wait` would not wait."""
        with self._changed:
            return self._is_closed or sequence_id in self._masks

    def wait(self, sequence_id: int) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or sequence_id in self._masks)
            return self._masks.pop(sequence_id, b"")
