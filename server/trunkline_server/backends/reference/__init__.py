"""Reference backend: torch, f32, clear and slow. What the other backends and the tests are compared with."""
