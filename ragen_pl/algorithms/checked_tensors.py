"""Checks of the tensors that estimators and losses return, which may be a user's own classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.user_classes import contract_error, described

_ZERO_ELSEWHERE = "0 where rollout.loss_mask is false: multiply by rollout.loss_mask"


def check_shape(
    part: object, method: str, given: object, what: str, shape: torch.Size, hint: str = ""
) -> None:
    """Refuse anything but a tensor of a shape.

    Raises:
        ConfigError: naming ``what`` was returned, with ``hint`` after it.
    """
    if not isinstance(given, Tensor) or given.shape != shape:
        wanted = f"a tensor of shape {tuple(shape)} (rows, tokens){hint}"
        raise contract_error(part, method, f"{described(given)} as {what}", wanted)


def check_per_token(
    part: object,
    method: str,
    results: Mapping[str, Any],
    inputs: Sequence[Tensor],
    mask: Tensor,
    *,
    is_masked: bool = True,
) -> None:
    """Check results that have one number per token; every rank must call it.

    Where an input is not finite on any rank, results may be so too: such a step is skipped.

    Args:
        part: The object that returned them.
        method: The method that returned them.
        results: What was returned, by name.
        inputs: What the results were made of, each (B, T).
        mask: (B, T) bool, the sampled tokens.
        is_masked: Whether the results must be zero at other tokens.

    Raises:
        ConfigError: on all ranks, if a result of any rank is no float tensor (B, T) on the device
            of the mask, is not finite, or is not zero where it must be.
    """
    is_sound, fault = True, None
    try:
        is_sound = _check_results(part, method, results, inputs, mask, is_masked)
    except ConfigError as error:
        fault = str(error)
    found = gather_objects((is_sound, fault))
    faults = [each for _, each in found if each is not None]
    if faults and all(sound for sound, _ in found):
        raise ConfigError(faults[0])


def _check_results(
    part: object,
    method: str,
    results: Mapping[str, Any],
    inputs: Sequence[Tensor],
    mask: Tensor,
    is_masked: bool,
) -> bool:
    """Check this rank's results; return whether its inputs are finite."""
    for name, value in results.items():
        _check_form(part, method, name, value, mask)
    infinite = {name: value.isfinite().logical_not() for name, value in results.items()}
    stray = {
        name: torch.where(mask, 0.0, value) != 0 if is_masked else torch.zeros_like(mask)
        for name, value in results.items()
    }
    unsound = [value.isfinite().all().logical_not() for value in inputs]
    marks = [each.any() for each in (*unsound, *infinite.values(), *stray.values())]
    found = torch.stack(marks).tolist()  # read at once: reading waits for a GPU
    if any(found[: len(inputs)]):
        return False
    if not any(found):
        return True
    wanted = "finite numbers, also for members that all earned the same (a spread of 0)"
    for name, value in results.items():
        for marked, fault, expected in (
            (infinite[name], "", wanted),
            (stray[name], ", which was not sampled", _ZERO_ELSEWHERE),
        ):
            if bool(marked.any()):
                row, token = torch.nonzero(marked)[0].tolist()
                told = f"{name} of {float(value[row, token]):.3g} at row {row}, token {token}"
                raise contract_error(part, method, told + fault, expected)
    raise AssertionError("a mark belongs to a result")


def _check_form(part: object, method: str, name: str, value: object, mask: Tensor) -> None:
    hint = ""
    if isinstance(value, Tensor):
        has_form = value.shape == mask.shape and value.is_floating_point()
        if has_form and value.device == mask.device:
            return
        if value.shape in (mask.shape[:1], (len(mask), 1)):
            hint = "\n  one number per row goes to its tokens as x.view(-1, 1) * rollout.loss_mask"
    raise contract_error(
        part,
        method,
        f"{described(value)} as {name}",
        f"a float tensor of shape {tuple(mask.shape)} (rows, tokens) on {mask.device}{hint}",
    )
