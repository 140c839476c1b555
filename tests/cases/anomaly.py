"""Runs a script with anomaly mode of autograd switched on: `python anomaly.py script.py`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

torch.autograd.set_detect_anomaly(True)
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
