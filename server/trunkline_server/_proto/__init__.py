"""Generated from proto/trunkline/shard/v1/shard.proto by scripts/gen_proto.py; not edited by hand."""
