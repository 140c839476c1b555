"""Bytes: where runs live, the ring, the codec, the control socket; no torch, no screen."""
