"""What viewers ask of a training, and how it is carried out before an update."""
