"""All peers, in the order in which they are measured."""

from __future__ import annotations

from . import llamacpp, openvino, transformers, trunkline, vllm
from .peer import Peer

PEERS: list[Peer] = [*trunkline.PEERS, *llamacpp.PEERS, *openvino.PEERS, *vllm.PEERS, *transformers.PEERS]
