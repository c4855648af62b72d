"""The shard process of Trunkline: weights, KV pool, forward pass and sampling behind the gRPC contract."""
