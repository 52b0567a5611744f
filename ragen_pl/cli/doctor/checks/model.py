"""The policy's model."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding, ok


def check_model(subject: ExaminedRun) -> Iterator[Finding]:
    """Build or load the policy; what is wrong with it is raised here."""
    language = subject.policy.language
    weights = list(language.model.parameters())
    count = sum(weight.numel() for weight in weights)
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    limit = "no limit" if language.context_limit is None else str(language.context_limit)
    yield ok(
        f"{count / 1e6:.2f} M parameters, {trained / 1e6:.2f} M of them trained, on "
        f"{language.model.device}; longest context: {limit}"
    )
