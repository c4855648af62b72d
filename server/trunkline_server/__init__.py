"""The shard process of Trunkline: weights, KV pool, forward pass and sampling behind the gRPC contract.

`cli.py` is the command line and `serve.py` its command `serve`, `service.py` answers the router, `loop.py` is the one
thread that computes, and `engine.py` executes a plan. Other commands (`hub.py`, `library.py`, `export`) find, list and
write models. The packages use each other in one direction: the service uses the engine, the engine the interface of
backends, backends use `models`, `weights` and `sampling`, and models know only `Ops`; `scripts/tidy.py` checks it.
Modules import torch and other large packages only when the backend that needs them is chosen.

Begin with `serve.py`, then `service.py`, `engine.py` and `backends/interface.py`. docs/tour.md follows one request.
"""
