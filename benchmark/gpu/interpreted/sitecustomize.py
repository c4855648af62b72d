"""Taken by each Python whose path this folder is on: shards then run kernels in Triton's interpreter quicker."""

import os

if os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get("GPU_CHECK_PATCH_ONCE") == "1":
    from gpu.interpreter import patch_once

    patch_once()
