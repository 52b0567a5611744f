"""Measure how much resident memory scoring tokens and their gradient add, in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn.functional import linear

from benchmarks.memory import peak_mebibytes
from ragen_pl.ops.chunked_head import chunked_log_prob_and_entropy
from ragen_pl.ops.losses import log_prob_and_entropy

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 32


def added_mebibytes(head: str, tokens: int, words: int, chunk_elements: int = 1 << 20) -> float:
    """Return by how much the peak of a new process rises while it scores and differentiates."""
    command = [sys.executable, "-m", "tests.ops.peak_memory", head]
    done = subprocess.run(
        [*command, str(tokens), str(words), str(chunk_elements)],
        cwd=ROOT,
        # Large blocks go back to the system at once, so that the peak is of what lives.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "131072"},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _measure(head: str, tokens: int, words: int, chunk_elements: int) -> float:
    """Return MiB added by one forward and backward, the head's gradient included."""

    def step(tokens: int, words: int) -> None:
        states = torch.ones(tokens, WIDTH, requires_grad=True)
        weight = torch.ones(words, WIDTH, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.long)
        if head == "chunked":
            scores = chunked_log_prob_and_entropy(
                states, weight, None, targets, chunk_elements=chunk_elements
            )
        else:
            scores = log_prob_and_entropy(linear(states, weight), targets)
        (scores[0].sum() + scores[1].sum()).backward()  # type: ignore[no-untyped-call]

    step(2, 10)  # libraries load on first use
    before = peak_mebibytes()
    step(tokens, words)
    return peak_mebibytes() - before


if __name__ == "__main__":
    print(_measure(sys.argv[1], *(int(each) for each in sys.argv[2:])))
