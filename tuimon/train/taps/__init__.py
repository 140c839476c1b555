"""Where tuimon listens inside torch: each file one kind of tap, every body behind the boundary."""
