"""What a run with hindsight imitation remembers and imitates: training states alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from callbacks import VarianceFilter
from ragen_pl.envs import Sokoban
from ragen_pl.types import HindsightBatch
from tests.support.distributed_job import Scripted, make_data, make_module
from tests.support.doubles import make_trainer
from tests.support.held_out import layout_split, shown_states, start_keys


class Imitated(Callback):
    """Note the tokens of every solution in the memory, and of every row that is trained on."""

    def __init__(self) -> None:
        self.remembered: set[tuple[int, ...]] = set()
        self.trained: set[tuple[int, ...]] = set()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if not isinstance(batch, HindsightBatch):
            return
        rows = zip(batch.input_ids, batch.attention_mask, strict=True)
        self.trained |= {tuple(ids[mask.bool()].tolist()) for ids, mask in rows}
        state = trainer.datamodule.solutions.memory.state_dict()  # type: ignore[attr-defined]
        ids = state["token_ids"].split(state["lengths"])
        self.remembered |= {tuple(row.tolist()) for row in ids}


def test_a_run_imitates_no_state_of_its_evaluation_set(tmp_path: Path) -> None:
    """With openings and symmetries, by which rooms are imitated that no rollout began in."""
    seen, data, module = Imitated(), make_data(), make_module(Scripted)
    module.vocabulary = list(data.vocabulary())
    callbacks = [VarianceFilter(0.5, include_zero=True), seen]
    trainer = make_trainer(tmp_path, 5, callbacks, limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    assert seen.trained
    assert seen.trained <= seen.remembered
    tokenizer = data.dialogues.chat(module).tokenizer
    texts = (str(tokenizer.decode(list(ids))) for ids in seen.remembered)
    states = [state for text in texts for state in shown_states(Sokoban(), text)]
    keys = {state.start_key() for state in states}
    assert len(keys) >= 5
    assert not keys & start_keys(data.eval_sets["default"], 256)
    assert {layout_split(state) for state in states} == {"train"}
