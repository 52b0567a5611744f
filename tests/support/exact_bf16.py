"""Where a row's products in bfloat16 have the same bits beside any other rows."""

from __future__ import annotations

import torch

IS_EXACT = bool(torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported())
"""Whether this is such a CPU as it was measured on; elsewhere tests allow for rounding. AMX, which
newer CPUs of Intel have, adds in an order of its own."""
