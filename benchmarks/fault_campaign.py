"""Plant faults in tiny runs and account for every one of them.

``python benchmarks/fault_campaign.py OUT --faults 1000 --seed 0`` trains small runs in this process
while environments raise, hang and return nonsense, losses and gradients are no numbers, policies
never stop or say only special tokens, groups and rollouts fail whole, evaluation sets fail, and the
disk is full. It prints a table and returns 1 unless every run reached its end, every planted fault
is in the run's log, and nothing was lost. Before it, 10,000 hostile strings pass through the
parser, the chat encoding, JSON lines and what is printed. docs/faults.md has the outcome of each.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import logging
import random
import sys
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __package__ is None or __package__ == "":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from lightning.pytorch import Callback, Trainer

import callbacks.checkpoints
import callbacks.results
import ragen_pl.distributed.checkpoint_io
from benchmarks.fault_injection import FaultyWorld, note
from benchmarks.hostile_strings import hostile_strings
from callbacks import (
    Checkpoints,
    EchoTrapDetector,
    EntropyLogger,
    FaultLog,
    Results,
    RolloutMetrics,
    SkippedSteps,
    TrajectoryWriter,
    VarianceFilter,
)
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import build_tokenizer, read_markers
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.runtime.visible_text import visible
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.training.trainer import announce
from ragen_pl.types import Completion, Request, Sampling
from tests.support.lamps import NamedLamp
from tests.support.toy_env import PROMPTS, make_learner
from tests.support.words import vocabulary

# Any, since their names are replaced by others.
saving: Any = callbacks.checkpoints
results_module: Any = callbacks.results
checkpoint_io: Any = ragen_pl.distributed.checkpoint_io

_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories that a terminal obeys, or shows as nothing."""
CONFIG = RolloutConfig(
    num_groups=6,
    group_size=6,
    max_turns=3,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=160,
)


@dataclass(slots=True)
class Account:
    """What became of one kind of faults."""

    planted: int = 0
    found: int = 0
    """Planted faults that the run's log or its files have."""
    crashes: int = 0
    losses: list[str] = field(default_factory=list)
    """Planted faults that nothing tells of, and files that are missing or broken."""
    runs: int = 0
    by_name: Counter[str] = field(default_factory=Counter)


class Speaker:
    """What the policy says in place of what it samples: presses, or something strange.

    Args:
        chat: The chat protocol.
        strange: Share of strange responses.
        rng: Their randomness.
    """

    def __init__(self, strange: float, rng: random.Random) -> None:
        self.strange, self.rng = strange, rng
        self.said: Counter[tuple[int, ...]] = Counter()
        self.kinds: Counter[str] = Counter()

    def __call__(
        self, module: StarPO, requests: Sequence[Request], sampling: Sampling
    ) -> list[Completion]:
        data: Any = module.trainer.datamodule  # type: ignore[attr-defined]
        chat: Chat = data.dialogues.chat(module)
        return [self._say(chat, request, sampling.max_new_tokens) for request in requests]

    def _say(self, chat: Chat, request: Request, limit: int) -> Completion:
        draw = random.Random(f"press {request.episode} {request.number}")
        answer = f"lit</think><answer>{draw.choice(('on', 'off'))}</answer>"
        ids, stopped = [*chat.encode([answer])[0], chat.markers.end], True
        is_training = request.episode.iteration < 1000
        if is_training and self.rng.random() < self.strange:
            kind = self.rng.choice(("never stops", "special tokens", "nothing", "one token", "any"))
            special = chat.tokenizer.all_special_ids
            ids, stopped = {
                "never stops": (chat.encode(["lit " * limit])[0][:limit], False),
                "special tokens": (self.rng.choices(special, k=limit), False),
                "nothing": ([chat.markers.end], True),
                "one token": ([self.rng.choice(ids)] * limit, False),
                "any": (self.rng.choices(range(len(chat.tokenizer)), k=limit), False),
            }[kind]
            self.said[tuple(ids)] += 1
            self.kinds[kind] += 1
        values = (-0.5,) * len(ids)
        return Completion(tuple(ids), values, (0.5,) * len(ids), stopped=stopped)


class Poison(Callback):
    """Make an advantage, a loss or a gradient no number, now and then.

    Args:
        ledger: File to which each is appended.
        rate: Share of the updates.
        rng: The choice.
    """

    def __init__(self, ledger: str, rate: float, rng: random.Random) -> None:
        self.ledger, self.rate, self.rng = ledger, rate, rng
        self._planted: tuple[str, float] | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._planted = None
        if not hasattr(batch, "advantages") or self.rng.random() >= self.rate:
            return
        kept = batch.rollout.kept_tokens
        if not bool(kept.any()):
            return
        where = self.rng.choice(("advantages", "loss", "gradient"))
        value = self.rng.choice((float("nan"), float("inf"), float("-inf")))
        self._planted = where, value
        note(self.ledger, batch=batch_idx, iteration=module.iteration + 1, where=where)
        if where == "advantages":
            batch.advantages[kept] = value

    def on_before_backward(self, trainer: Any, module: Any, loss: torch.Tensor) -> None:
        if self._planted is not None and self._planted[0] == "loss":
            loss.data.fill_(self._planted[1])
            loss.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[no-untyped-call]

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if self._planted is not None and self._planted[0] == "gradient":
            weights = [weight for weight in module.parameters() if weight.grad is not None]
            self.rng.choice(weights).grad.view(-1)[0] = self._planted[1]


class FullDisk:
    """A disk that is full now and then, for checkpoints, policies, results and batches.

    Args:
        ledger: File to which each failed write is appended; it is on another disk.
        rate: Share of the writes that fail.
    """

    def __init__(self, ledger: str, rate: float, rng: random.Random) -> None:
        self.ledger, self.rate, self.rng = ledger, rate, rng

    def _fills(self, what: str) -> None:
        if self.rng.random() < self.rate:
            note(self.ledger, what=what)
            if what == "checkpoint" and self.rng.random() < 0.5:
                raise RuntimeError("[enforce fail at inline_container.cc:668] unexpected pos 64")
            raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Let writes fail within the block."""
        save, export, move, write = (
            torch.save,
            saving.export_policy,
            saving.put_in_place,
            results_module.write_text,
        )
        disk = self

        class Files:
            def __getattr__(self, name: str) -> Any:
                return getattr(torch, name)

            def save(self, content: Any, path: Path) -> None:
                if str(path).endswith(".tmp"):
                    Path(path).write_bytes(b"PK half a checkpoint")
                    disk._fills("checkpoint")
                save(content, path)

        def exported(language: Any, folder: Path) -> None:
            export(language, folder)
            if not checkpoint_io.WRITE_FAILURE.text:  # told of once per checkpoint
                disk._fills("policy")

        def moved(draft: Path, path: Path, *before: Any) -> None:
            disk._fills("rename")
            move(draft, path, *before)

        def written(path: Path, text: str) -> None:
            disk._fills("results")
            write(path, text)

        checkpoint_io.torch = Files()
        saving.export_policy, saving.put_in_place = exported, moved
        results_module.write_text = written
        try:
            yield
        finally:
            checkpoint_io.torch = torch
            saving.export_policy, saving.put_in_place = export, move
            results_module.write_text = write


# --- one run --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """One tiny run."""

    env: TextEnv
    iterations: int = 4
    eval_env: TextEnv = field(default_factory=NamedLamp)
    rollout: RolloutConfig = CONFIG
    warm_iterations: int = 0
    callbacks: Sequence[Callback] = ()


def train(plan: Plan, folder: Path, speaker: Speaker) -> None:
    """Train in this process; what is printed goes to ``log.txt``."""
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=plan.rollout,
        warm_start=WarmStart(
            plan.warm_iterations, demonstrations=8, batch_size=4, updates_per_iteration=2
        ),
        evaluation=EvaluationConfig(size=4),
    )
    # Past the checks at the start.
    data.envs[""], data.eval_sets["default"] = plan.env, plan.eval_env
    module = make_learner()
    module.generate = lambda requests, sampling: speaker(module, requests, sampling)  # type: ignore[method-assign]
    trainer = Trainer(
        max_epochs=plan.iterations,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        num_sanity_val_steps=0,
        plugins=[AnyCheckpointIO()],
        callbacks=[
            VarianceFilter(1.0, include_zero=True),
            EchoTrapDetector(stop=False),
            EntropyLogger(),
            RolloutMetrics(),
            TrajectoryWriter(every_n_iterations=1, groups=None, max_mb=10_000.0),
            SkippedSteps(),
            *plan.callbacks,
            Checkpoints(every_n_iterations=1),
            Results(temperatures=(0.5,)),
            FaultLog(),
        ],
    )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log.txt").open("w", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        trainer.fit(module, datamodule=data)


def lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def attempt(account: Account, plan: Plan, folder: Path, speaker: Speaker) -> None:
    """Train, and note a crash or a run that left no sound results behind."""
    account.runs += 1
    try:
        train(plan, folder, speaker)
    except Exception:
        account.crashes += 1
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "crash.txt").write_text(traceback.format_exc())
        print(f"crash: {folder / 'crash.txt'}")
        return
    results = json.loads((folder / "results.json").read_text())
    if results["iterations"] < plan.iterations and not any(
        line["text"].startswith("results.json") for line in lines(folder / "faults/rank0.jsonl")
    ):
        account.losses.append(f"{folder.name}: ended after {results['iterations']} iterations")


def reconcile(account: Account, planted: Counter[Any], logged: Counter[Any], folder: Path) -> None:
    """Compare what was planted with what the log has."""
    account.planted += planted.total()
    account.found += (planted & logged).total()
    missing, extra = planted - logged, logged - planted
    account.losses += [f"{folder.name}: {name} × {count}" for name, count in missing.items()]
    account.losses += [f"{folder.name}: unplanted {name}" for name in extra]


# --- chapters -------------------------------------------------------------------------------------

Chapter = Callable[[Account, Path, random.Random], None]


def environments(account: Account, folder: Path, rng: random.Random) -> None:
    """Environments that raise or return nonsense, each method by turns."""
    ledger = str(folder.with_suffix(".ledger"))
    plan = Plan(FaultyWorld(ledger, 0.6, salt=rng.getrandbits(32)))
    attempt(account, plan, folder, Speaker(0.0, rng))
    _reconcile_environments(account, folder, ledger)


def _reconcile_environments(account: Account, folder: Path, ledger: str) -> None:
    planted = Counter((line["method"], line["seed"]) for line in lines(Path(ledger)))
    logged = Counter(
        (line["text"].split()[0], line["seed"])
        for line in lines(folder / "faults/rank0.jsonl")
        if line["kind"] == "environment"
    )
    account.by_name += Counter(method for method, _ in planted.elements())
    reconcile(account, planted, logged, folder)


def hangs(account: Account, folder: Path, rng: random.Random) -> None:
    """Environments in workers that hang."""
    ledger = str(folder.with_suffix(".ledger"))
    rollout = replace(CONFIG, env_workers=2, step_timeout_s=0.3, group_size=3)
    env = FaultyWorld(ledger, 0.2, hangs=True, salt=rng.getrandbits(32))
    attempt(account, Plan(env, 2, rollout=rollout), folder, Speaker(0.0, rng))
    _reconcile_environments(account, folder, ledger)


def groups(account: Account, folder: Path, rng: random.Random) -> None:
    """Groups all of whose members fail, and rollouts of nothing but such groups."""
    ledger = str(folder.with_suffix(".ledger"))
    rollout = replace(CONFIG, num_groups=2)
    env = FaultyWorld(ledger, 1.0, whole=True, salt=rng.getrandbits(32))
    attempt(account, Plan(env, 9, rollout=rollout), folder, Speaker(0.0, rng))
    _reconcile_environments(account, folder, ledger)
    lost = sum(line["kind"] == "rollout" for line in lines(folder / "faults/rank0.jsonl"))
    account.by_name["rollouts lost whole"] += 3
    reconcile(account, Counter({"rollout": 3}), Counter({"rollout": lost}), folder)


def updates(account: Account, folder: Path, rng: random.Random) -> None:
    """Advantages, losses and gradients that are no numbers."""
    ledger = str(folder.with_suffix(".ledger"))
    rollout = replace(CONFIG, num_groups=2, online_k=4, group_size=4)
    plan = Plan(NamedLamp(), 8, rollout=rollout, callbacks=[Poison(ledger, 0.6, rng)])
    attempt(account, plan, folder, Speaker(0.0, rng))
    planted = Counter((line["iteration"], line["batch"]) for line in lines(Path(ledger)))
    account.by_name += Counter(line["where"] for line in lines(Path(ledger)))
    logged = Counter(
        (line["iteration"], line["batch"])
        for line in lines(folder / "faults/rank0.jsonl")
        if line["kind"] == "update"
    )
    reconcile(account, planted, logged, folder)
    state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    if not all(bool(weight.isfinite().all()) for weight in state.values()):
        account.losses.append(f"{folder.name}: weights that are no numbers")


def policies(account: Account, folder: Path, rng: random.Random) -> None:
    """Policies that never stop, say nothing, or say only special tokens."""
    speaker = Speaker(0.3, rng)
    attempt(account, Plan(NamedLamp()), folder, speaker)
    written: Counter[tuple[int, ...]] = Counter()
    for path in sorted((folder / "trajectories").glob("rollout-*.jsonl")):
        for record in lines(path):
            written.update(_responses(record))
    account.by_name += speaker.kinds
    reconcile(account, speaker.said, written & speaker.said, folder)


def _responses(record: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield the sampled tokens of a trajectory's turns: runs of its loss mask."""
    ids, mask = record["token_ids"], record["loss_mask"]
    current: list[int] = []
    for token, sampled in zip([*ids, 0], [*mask, False], strict=True):
        if sampled:
            current.append(token)
        elif current:
            yield tuple(current)
            current = []


def disks(account: Account, folder: Path, rng: random.Random) -> None:
    """A disk that is full while checkpoints, policies and results are written."""
    ledger = str(folder.with_suffix(".ledger"))
    disk = FullDisk(ledger, 0.2, rng)
    with disk.mounted():
        attempt(account, Plan(NamedLamp(), 10), folder, Speaker(0.0, rng))
    names = {"checkpoint": "a checkpoint", "policy": "a checkpoint", "rename": "a checkpoint"}
    planted = Counter(names.get(line["what"], line["what"]) for line in lines(Path(ledger)))
    account.by_name += Counter(line["what"] for line in lines(Path(ledger)))
    logged = Counter(
        "results" if line["text"].startswith("results") else "a checkpoint"
        for line in lines(folder / "faults/rank0.jsonl")
        if line["kind"] == "write"
    )
    reconcile(account, planted, logged, folder)
    kept = folder / "checkpoints/last.ckpt"
    if kept.exists():
        found = torch.load(kept, weights_only=True)
        if "state_dict" not in found:
            account.losses.append(f"{folder.name}: the checkpoint is broken")
    elif not any("last" in line["text"] for line in lines(folder / "faults/rank0.jsonl")):
        account.losses.append(f"{folder.name}: no checkpoint")


def evaluations(account: Account, folder: Path, rng: random.Random) -> None:
    """Evaluation sets on which everything fails, or that cannot be built at all."""
    ledger = str(folder.with_suffix(".ledger"))
    env = FaultyWorld(ledger, 1.0, salt=rng.getrandbits(32))
    attempt(account, Plan(NamedLamp(), 2, eval_env=env), folder, Speaker(0.0, rng))
    _reconcile_environments(account, folder, ledger)

    class Never(NamedLamp):
        def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
            raise ConnectionError("no such server")

    account.planted += 1
    account.by_name["cannot be built"] += 1
    try:
        train(Plan(NamedLamp(), 1, eval_env=Never()), folder / "none", Speaker(0.0, rng))
    except ConfigError as error:
        account.found += "data.eval_sets.default" in str(error)
    else:
        account.losses.append(f"{folder.name}: a set that cannot be built was not told of")


CHAPTERS: dict[str, tuple[Chapter, float]] = {
    "environments": (environments, 0.45),
    "policies": (policies, 0.2),
    "groups and rollouts": (groups, 0.1),
    "evaluations": (evaluations, 0.08),
    "updates": (updates, 0.1),
    "disks": (disks, 0.05),
    "hangs": (hangs, 0.02),
}
"""Chapters with their share of the faults."""


# --- strings --------------------------------------------------------------------------------------


def strings(count: int, seed: int, folder: Path) -> list[str]:
    """Pass hostile strings through what reads, stores and prints text; return what was lost."""
    lost: list[str] = []
    texts = hostile_strings(count, seed)
    prompts = Prompts(system="{instruction} {format}", turn="{observation}")
    tokenizer = build_tokenizer(list(vocabulary(prompts, NamedLamp(), 1)))
    chat = Chat(prompts, tokenizer, read_markers(tokenizer), 2)
    special = set(tokenizer.all_special_ids)
    terminal = io.StringIO()
    path = folder / "strings.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(terminal):
        for number, text in enumerate(texts):
            parsed = chat.parse(text, ("on", "off"))
            if any(action not in ("on", "off") for action in parsed.actions):
                lost.append(f"{number}: parsed an action that there is not")
            free = chat.parse(f"</think><answer>{text}</answer>", None)
            if (
                "</answer>" not in text
                and "<" not in text
                and free.actions
                not in (
                    (text.strip(),),
                    (),
                )
            ):
                lost.append(f"{number}: free text was changed")
            if not any(0xD800 <= ord(character) <= 0xDFFF for character in text):
                (ids,) = chat.encode([text])
                if special & set(ids):
                    lost.append(f"{number}: text was read as a marker")
                if chat.decode(ids) != text:
                    lost.append(f"{number}: encoded text is not the same")
            file.write(json.dumps({"text": text}) + "\n")
            announce(_Printing(), text)  # type: ignore[arg-type]
    for number, (text, line) in enumerate(zip(texts, lines(path), strict=True)):
        # Two halves of a surrogate pair in a row are one character in every file.
        if line["text"] != text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"):
            lost.append(f"{number}: JSON lines")
    shown = terminal.getvalue()
    if any(unicodedata.category(each) in _OBEYED and each not in "\n\t" for each in shown):
        lost.append("a control character reached the terminal")
    if shown != "".join(visible(text) + "\n" for text in texts):
        lost.append("something was not printed")
    return lost


class _Printing:
    """As much of a trainer as printing takes."""

    is_global_zero = True
    progress_bar_callback = None


# --- the campaign ---------------------------------------------------------------------------------


def campaign(folder: Path, faults: int, count: int, seed: int) -> int:
    """Run all chapters and print the table; return 1 if anything was lost."""
    began = time.monotonic()
    lost = strings(count, seed, folder)
    print(f"{count} hostile strings: {len(lost)} lost or executed {lost[:3]}", flush=True)
    accounts: dict[str, Account] = {}
    for name, (chapter, share) in CHAPTERS.items():
        accounts[name] = account = Account()
        while account.planted < faults * share and account.runs < 200 and not account.crashes:
            place = folder / f"{chapter.__name__}-{account.runs}"
            chapter(account, place, random.Random(f"{name} {seed} {account.runs}"))
        print(f"{name}: {account.planted} planted, {account.found} in the log", flush=True)
    print(f"\n{'':21}{'runs':>6}{'planted':>9}{'in the log':>12}{'crashes':>9}{'silent':>8}")
    for name, account in accounts.items():
        row = account.runs, account.planted, account.found, account.crashes, len(account.losses)
        print(f"{name:21}{row[0]:>6}{row[1]:>9}{row[2]:>12}{row[3]:>9}{row[4]:>8}")
    total = [sum(each) for each in zip(*(
        (a.runs, a.planted, a.found, a.crashes, len(a.losses)) for a in accounts.values()
    ), strict=True)]  # fmt: skip
    print(f"{'all':21}{total[0]:>6}{total[1]:>9}{total[2]:>12}{total[3]:>9}{total[4]:>8}")
    for name, account in accounts.items():
        kinds = ", ".join(f"{kind} {number}" for kind, number in account.by_name.most_common())
        print(f"{name}: {kinds}")
        for loss in account.losses[:10]:
            print(f"  {loss}")
    print(f"{time.monotonic() - began:.0f} s")
    is_enough = total[1] >= faults and total[1] == total[2]
    return int(bool(lost) or not is_enough or total[3] > 0 or total[4] > 0)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--strings", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return campaign(options.out.resolve(), options.faults, options.strings, options.seed)


if __name__ == "__main__":
    sys.exit(main())
