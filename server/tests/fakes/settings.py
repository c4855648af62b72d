"""Files of settings as the launcher writes them."""

from __future__ import annotations

import json
from pathlib import Path

DEFAULTS = Path(__file__).resolve().parents[3] / "settings/tests/serve.json"

GROUPS = ("server", "compute", "step_limits", "shard_cache", "adapter_slots", "logging")


def write_settings(folder: Path, model: Path, **changes: object) -> Path:
    """Writes a file with the defaults but for the model and the given settings of the shard, and returns its path."""
    settings = json.loads(DEFAULTS.read_text())
    settings["model_path"] = str(model)
    for name, value in changes.items():
        (group,) = (group for group in GROUPS if name in settings[group])
        settings[group][name] = value
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    return path
