"""Imported by every Python process with this folder on its path, so that shards also use the faster interpreter."""

import os

if os.environ.get("TRITON_INTERPRET") == "1" and os.environ.get("GPU_CHECK_PATCH_ONCE") == "1":
    from gpu.interpreter import patch_once

    patch_once()
