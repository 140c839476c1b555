"""What a key, a click or a typed line does to the scene or asks of the training."""
