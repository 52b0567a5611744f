"""The parts in the order of their value, with the time that each may take."""

from __future__ import annotations

from benchmarks.gpu_day_parts.part import Part

LIBRARY = (
    *("torch", "transformers", "lightning", "torchmetrics", "peft", "gymnasium", "tokenizers"),
    *("jinja2", "tqdm"),
)
"""Packages that the library imports when it trains."""
COMMAND = (*LIBRARY, "jsonargparse", "docstring_parser", "typeshed_client", "rich", "tensorboard")
"""Packages that ``run.py fit`` imports."""
SHAPES = {"0.5b": 140.0, "1.5b": 110.0, "3b": 110.0, "7b": 150.0}
"""Shapes whose speed is measured, and the seconds for each."""
TINY_SHAPES = ("0.5b", "1.5b")
"""Those of a tiny day, in which all shapes are the same: two, so that one can be predicted."""
BESIDE_TRL = {
    **{"0.5b": 70.0, "0.5b_lora": 70.0, "1.5b_lora": 90.0, "1.5b": 90.0},
    **{"3b_lora": 120.0, "7b_lora": 150.0, "3b": 120.0, "7b": 150.0},
}
"""Shapes above 135M that are trained beside TRL, and the seconds for each. What does not fit says
so: 3B with all weights needs an H200, 7B is more than one device has."""


def _real(experiment: str, seconds: float) -> Part:
    title = f"a real model: {experiment}"
    return Part(f"real_{experiment}", title, "real_model", seconds, (experiment,), COMMAND)


def _speed(shape: str) -> Part:
    title = f"decoding against the bandwidth, updates against the arithmetic, {shape}"
    in_tiny = shape in TINY_SHAPES
    return Part(f"speed_{shape}", title, "speed", SHAPES[shape], (shape,), LIBRARY, in_tiny)


def _beside(model: str, seconds: float) -> Part:
    title = f"beside generate and TRL, {model}"
    in_tiny = model in ("tiny", "135m_lora")
    return Part(f"beside_{model}", title, "beside", seconds, (model,), LIBRARY, in_tiny)


def _beside_trl(model: str) -> Part:
    packages = (*LIBRARY, "trl", "datasets")
    title = f"beside TRL, {model}"
    return Part(
        f"beside_{model}", title, "beside", BESIDE_TRL[model], (model,), packages, in_tiny=False
    )


PARTS = (
    Part("environment", "versions, devices, and what is not installed", "environment", 15),
    Part("ceilings", "what the device can do at most", "ceilings", 35, packages=LIBRARY),
    Part("numerics", "sampled against recomputed log-probs", "numerics", 150, packages=LIBRARY),
    Part("tests", "the tests for GPUs", "gpu_tests", 100, packages=(*LIBRARY, "pytest")),
    _speed("0.5b"),
    _speed("1.5b"),
    Part("sokoban", "the default run", "default_run", 100, packages=COMMAND),
    _speed("3b"),
    _speed("7b"),
    _beside("tiny", 80),
    Part("compile", "compiled updates, 0.5b", "speed", 120, ("0.5b", "compiled"), LIBRARY, False),
    _beside("135m", 110),
    _beside("135m_lora", 80),
    _beside_trl("0.5b"),
    _beside_trl("0.5b_lora"),
    Part("memory", "planned against measured memory", "memory_plan", 100, packages=LIBRARY),
    Part("vllm", "vLLM on the same dialogues", "beside_vllm", 70, packages=(*LIBRARY, "vllm")),
    Part("seconds", "the planner's seconds, calibrated", "plan_seconds", 15, packages=LIBRARY),
    _real("bandit", 110),
    _real("sokoban", 0),
    Part("nccl", "two ranks over NCCL", "two_ranks", 120, packages=COMMAND),
    *(_beside_trl(model) for model in BESIDE_TRL if not model.startswith("0.5b")),
)
"""``real_sokoban`` takes what is left of a call. What stands behind it runs where there is no model
for it, or in the next call."""


def part_named(name: str) -> Part:
    """Return the part of a name.

    Raises:
        ValueError: when there is none.
    """
    for part in PARTS:
        if part.name == name:
            return part
    names = ", ".join(part.name for part in PARTS)
    raise ValueError(f"there is no part {name}; the parts are {names}")
