"""Tests of the server. A package, because another one of this name in an environment would hide a plain folder."""
