"""The signals belong to the run from its first hook on, and not to Lightning."""

from __future__ import annotations

import signal
from pathlib import Path

from lightning.pytorch import Trainer

from callbacks import Interruption
from tests.support.doubles import make_trainer
from tests.support.toy_env import make_learner


def test_lightning_does_not_see_a_signal_of_a_run(tmp_path: Path) -> None:
    """Where it did, its own exception could come first, which exits with 0."""
    callback, before = Interruption(), signal.getsignal(signal.SIGTERM)
    trainer: Trainer = make_trainer(tmp_path, 1, [callback])
    module = make_learner()
    callback.setup(trainer, module, "fit")
    try:
        trainer._signal_connector.register_signal_handlers()
        callback.on_train_start(trainer, module)
        signal.raise_signal(signal.SIGTERM)
        assert callback.signum == signal.SIGTERM
        assert not trainer.received_sigterm
    finally:
        trainer._signal_connector.teardown()
        callback.teardown(trainer, module, "fit")
    assert signal.getsignal(signal.SIGTERM) == before
