"""Set up what every test shares."""

from __future__ import annotations

import os

import torch
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)  # several threads on a busy machine wait for one another
settings.register_profile("unhurried", deadline=None, max_examples=30)
settings.load_profile("unhurried")
