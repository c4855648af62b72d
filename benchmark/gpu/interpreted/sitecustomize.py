"""Imported by every Python process with this folder on its path, so that shards also use the faster interpreter."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.cuda.quick_interpreter import patch_once

    patch_once()
