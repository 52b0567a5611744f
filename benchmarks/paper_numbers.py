"""Figures of RAGEN (arXiv 2504.20073) and RAGEN-2 (2604.06268), reported beside a sweep's.

They are of models of 0.5 to 3 billion parameters on the papers' rooms: the order of the settings is
comparable, the level is not. *Figure* marks values read off a curve.
"""

from __future__ import annotations

SOURCES = {
    "keep": "RAGEN, PPO on Sokoban, success at step 200 (figure)",
    "clip_higher": "RAGEN, PPO on Sokoban without a filter (figure)",
    "kl": "RAGEN, PPO on Sokoban without a filter (figure)",
    "online_k": "RAGEN, Fig. 10, Sokoban, steps 150 to 200 (figure)",
    "groups": "RAGEN, Tab. 2, Sokoban",
    "actions": "RAGEN, Tab. 3, Sokoban; its total of actions grew with those of a turn",
    "think": "RAGEN, Tab. 4, Sokoban, StarPO-S",
    "filter": "RAGEN-2, App. C, Sokoban, 3 billion parameters, peak success",
    "estimator": "RAGEN-2, Sokoban, 3 billion parameters, without a filter, peak success",
}

PAPER: dict[str, dict[str, str]] = {
    "keep": {"1.0": "0 % from step 90", "0.75": "≈ 19 %", "0.5": "≈ 16 %", "0.25": "≈ 21 %"},
    "clip_higher": {
        "0.2": "0 % from step 40",
        "0.28": "peak 11.7 % at step 60, 0 % at 200",
    },
    "kl": {
        "0.001": "0 % from step 40",
        "none": "peak 11 % at step 60, 0 % at 180",
    },
    "online_k": {"1": "≈ 20 %", "2": "≈ 17 %", "5": "≈ 17 %", "10": "≈ 16 %"},
    "groups": {
        "4x32": "21.09 %",
        "8x16": "20.31 %",
        "16x8": "20.31 %",
        "32x4": "20.70 %",
        "64x2": "19.92 %",
        "128x1": "19.53 %",
    },
    "actions": {
        "1": "12.11 %",
        "2": "16.41 %",
        "3": "19.53 %",
        "4": "26.95 %",
        "5": "28.13 %",
        "6": "33.59 %",
        "7": "22.27 %",
    },
    "think": {"think": "21.48 %", "no-think": "20.73 %"},
    "filter": {
        "all": "17 %",
        "top-p 0.9": "38 %",
        "top-p 0.5": "29 %",
        "min-p 0.05": "42 %",
        "min-p 0.2": "45 %",
        "top-k 0.25": "22 %",
        "top-k 0.5": "44 %",
    },
    "estimator": {"GAE": "12.9 %", "GRPO": "12.1 %", "DrGRPO": "12.1 %"},
}
"""By sweep and setting."""
