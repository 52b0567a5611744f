"""A pretrained model by its recipes: the bandit, and Sokoban for the rest of the time.

Adapters are trained as the model's config has them, but for SmolLM2-135M's Sokoban, whose recipe
for GPUs trains all weights.
"""

from __future__ import annotations

import time

from benchmarks.gpu_day_parts.fit_run import FitRun, record_run
from benchmarks.gpu_day_parts.part import Day, Record, SkipPart
from ragen_pl.cli.config.files import find_config
from ragen_pl.errors import ConfigError

TINY = (
    *("--trainer.max_epochs=1", "--trainer.precision=32-true", "--trainer.limit_val_batches=0"),
    *("--data.rollout.num_groups=2", "--data.rollout.group_size=2", "--data.rollout.max_turns=1"),
    *("--data.rollout.max_response_tokens=8", "--data.rollout.max_context=400"),
    *("--data.evaluation.size=2", "--filter.include_zero=true", "--threads=1"),
)
_RECIPES = {
    "bandit": (
        *("--config", "bandit_examples.yaml", "--config", "grpo.yaml"),
        *("--trainer.precision", "bf16-mixed"),
    ),
    "sokoban": (
        *("--config", "starpo_s.yaml", "--model.algorithm.advantage", "GRPO"),
        *("--config", "benchmarks/sokoban_135m.yaml"),
        *("--config", "benchmarks/sokoban_135m_gpu.yaml"),
    ),
}
"""What docs/real_model.md adds for ``smollm2-135m``, by experiment."""
_SMALL = "smollm2-135m"


def run(day: Day, record: Record, experiment: str) -> None:
    """Run an experiment with the model of ``--model_folder`` as far as the time goes.

    A small model keeps its own attention, which the fused decoder samples with: it waits for
    launches. Others have PyTorch's, whose kernels are the fast ones on GPUs.
    """
    if day.model_folder is None:
        raise SkipPart("no pretrained model is given: --model_folder FOLDER")
    if not (day.model_folder / "config.json").is_file():
        raise SkipPart(f"--model_folder {day.model_folder} has no config.json")
    # Slow to import, which a part that cannot run need not do.
    from benchmarks.gpu_day_parts.device import open_device

    open_device(day)
    options = [*_config(f"{experiment}.yaml"), *_config(f"{day.model_config}.yaml")]
    options += ["--model.policy.path", str(day.model_folder.resolve())]
    if day.tiny:
        options += TINY
    elif day.model_config == _SMALL:
        options += _RECIPES[experiment]
    else:
        options += ["--model.policy.attention", "sdpa"]
    name = f"real_{experiment}"
    began = time.monotonic()
    results = FitRun(name, tuple(options)).run(day, day.seconds)
    record_run(record, name, results, began)


def _config(name: str) -> tuple[str, str]:
    """Return the options for a config, which must exist.

    Raises:
        SkipPart: when it does not.
    """
    try:
        find_config(name)
    except ConfigError as error:
        raise SkipPart(f"no config {name}: --model_config names one in configs/model/") from error
    return "--config", name
