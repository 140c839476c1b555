"""The panels: each turns a scene into rows of its own size and knows when it must not."""
