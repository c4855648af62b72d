"""The reference backend: torch, f32, simple and slow. Tests compare the other backends with it."""
