"""How a loop puts its parts together: what it calls, clears, scales and reaches."""
