"""The GPU day: parts fail alone, a second call goes on, and every aim is one of the log's."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu_day import PAGE, RESULTS, check_folder, chosen_parts, main, run_day
from benchmarks.gpu_day_parts.__main__ import run_part
from benchmarks.gpu_day_parts.aims import AIMS, Aim, Verdict
from benchmarks.gpu_day_parts.beside import race
from benchmarks.gpu_day_parts.catalog import BESIDE_TRL, PARTS, SHAPES, part_named
from benchmarks.gpu_day_parts.fit_run import FitRun, fit_options
from benchmarks.gpu_day_parts.page import PHASES, to_markdown
from benchmarks.gpu_day_parts.part import (
    FOLDER,
    Day,
    Figure,
    Part,
    PartResult,
    Record,
    SkipPart,
    Status,
)
from benchmarks.gpu_day_parts.plan_seconds import SHARES
from benchmarks.gpu_day_parts.runner import Runner, command_line
from benchmarks.gpu_day_parts.two_ranks import relative_gaps
from benchmarks.grid import ROOT

GOOD = """
import json, pathlib, sys
path = pathlib.Path(sys.argv[1])
figures = [{"name": path.stem + "/speed", "value": 2.0, "unit": "s"}]
endings = {"skipped": "", "unfinished": ""}
path.write_text(json.dumps({"figures": figures, "notes": ["well"], **endings}))
with path.with_suffix(".calls").open("a") as calls:
    calls.write("x")
"""
SCRIPTS = {
    "good": GOOD,
    "crash": GOOD + "print('about to fail'); sys.exit(3)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "slow": GOOD + "import time; time.sleep(60)",
    "stopped": GOOD.replace('"unfinished": ""', '"unfinished": "3 of 9 iterations"'),
    "left_out": GOOD.replace('"skipped": ""', '"skipped": "no such device"'),
    "after": GOOD,
}


def part(name: str, seconds: float = 30.0) -> Part:
    return Part(name, f"what {name} does", "none", seconds)


def runner(folder: Path, **changes: object) -> Runner:
    """Return a runner whose parts are trivial programs."""

    def line(part: Part, day: Day) -> Sequence[str]:
        record = day.out / FOLDER / f"{part.name}.json"
        return [sys.executable, "-S", "-E", "-c", SCRIPTS[part.name], str(record)]

    plain = Runner(Day(folder), 60.0, report=lambda _: None, line=line, grace=0.2)
    return replace(plain, **changes)  # type: ignore[arg-type]


def calls(folder: Path, name: str) -> int:
    path = folder / FOLDER / f"{name}.calls"
    return len(path.read_text()) if path.is_file() else 0


def test_a_part_that_fails_is_recorded_and_the_next_goes_on(tmp_path: Path) -> None:
    parts = [part(name) for name in ("good", "crash", "killed", "left_out", "after")]
    assert not run_day(runner(tmp_path), parts, parts)
    content = json.loads((tmp_path / RESULTS).read_text())
    ended = {each["part"]: each for each in content["parts"]}
    assert {name: each["status"] for name, each in ended.items()} == {
        "good": "done",
        "crash": "failed",
        "killed": "failed",
        "left_out": "skipped",
        "after": "done",
    }
    assert ended["crash"]["reason"] == "exit status 3"
    assert ended["crash"]["log_tail"] == ["about to fail"]
    assert ended["crash"]["figures"] == [{"name": "crash/speed", "value": 2.0, "unit": "s"}]
    assert ended["killed"]["reason"] == "ended by SIGKILL"
    assert ended["left_out"]["reason"] == "no such device"
    page = (tmp_path / PAGE).read_text()
    for text in ("failed (exit status 3)", "about to fail", "skipped (no such device)"):
        assert text in page


def test_a_part_that_exceeds_its_time_is_ended_and_keeps_what_it_found(tmp_path: Path) -> None:
    parts = [part("slow", 0.3), part("after")]
    began = time.monotonic()
    run_day(runner(tmp_path), parts, parts)
    assert time.monotonic() - began < 20
    slow, after = (runner(tmp_path).outcome(each) for each in parts)
    assert slow is not None
    assert after is not None
    assert (slow.status, after.status) == (Status.OUT_OF_TIME, Status.DONE)
    assert slow.figures == (Figure("slow/speed", 2.0, "s"),)


def test_a_second_call_runs_what_has_no_result(tmp_path: Path) -> None:
    parts = [part(name) for name in ("good", "crash", "left_out")]
    run_day(runner(tmp_path), parts[:2], parts)
    run_day(runner(tmp_path), parts, parts)
    run_day(runner(tmp_path), parts, parts)
    assert [calls(tmp_path, each.name) for each in parts] == [1, 1, 2]
    assert not run_day(runner(tmp_path, retry=True), parts, parts)
    assert [calls(tmp_path, each.name) for each in parts] == [1, 2, 3]


def test_a_run_that_stopped_in_time_goes_on_when_it_is_asked_for(tmp_path: Path) -> None:
    parts = [part("stopped")]
    assert run_day(runner(tmp_path), parts, parts)
    assert run_day(runner(tmp_path), parts, parts)
    assert calls(tmp_path, "stopped") == 1
    assert "done (3 of 9 iterations)" in (tmp_path / PAGE).read_text()
    run_day(runner(tmp_path, retry=True), parts, parts)
    assert calls(tmp_path, "stopped") == 2


def test_what_the_calls_own_limit_cuts_off_is_run_again(tmp_path: Path) -> None:
    parts = [part("slow", 30.0), part("after")]
    short = runner(tmp_path, seconds=0.4, shortest=0.1)
    assert run_day(short, parts, parts), "cut is not failed"
    found = short.outcome(parts[0])
    assert found is not None
    assert found.status is Status.CUT
    assert short.is_due(parts[0])
    assert short.outcome(parts[1]) is None


def test_an_outcome_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    broken = runner(tmp_path).file(part("good"), ".outcome.json")
    broken.parent.mkdir()
    for text in ("", "{}", "[1]", '{"part": "good"}'):
        broken.write_text(text)
        assert runner(tmp_path).outcome(part("good")) is None
    assert run_day(runner(tmp_path), [part("good")], [part("good")])


def test_a_folder_of_another_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_day(runner(tmp_path), [], [])
    check_folder(Day(tmp_path))
    with pytest.raises(ValueError, match="give another folder"):
        check_folder(Day(tmp_path, tiny=True))
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--tiny"])
    assert "give another folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--parts", "nothing"])
    assert "there is no part nothing; the parts are environment, " in capsys.readouterr().err


def test_the_parts_fit_into_half_an_hour_and_exist() -> None:
    names = [each.name for each in PARTS]
    assert [each.name for each in PARTS if not each.seconds] == ["real_sokoban"]
    rest = names.index("real_sokoban")
    assert sum(each.seconds for each in PARTS[:rest]) < 29 * 60
    assert set(BESIDE_TRL) == {f"{shape}{lora}" for shape in SHAPES for lora in ("", "_lora")}
    larger = {f"beside_{name}" for name in BESIDE_TRL} - {"beside_0.5b", "beside_0.5b_lora"}
    assert set(names[rest + 1 :]) == larger | {"nccl"}, "what a call may leave for the next"
    assert len({each.name for each in PARTS}) == len(PARTS)
    for each in PARTS:
        assert importlib.util.find_spec(f"benchmarks.gpu_day_parts.{each.module}") is not None
        assert part_named(each.name) is each


def test_a_part_alone_may_take_the_calls_whole_time() -> None:
    assert chosen_parts(None) == list(PARTS)
    (alone,) = chosen_parts(["sokoban", "sokoban"])
    assert alone == replace(part_named("sokoban"), seconds=0.0)
    both = chosen_parts(["vllm", "sokoban"])
    assert both == [part_named("sokoban"), part_named("vllm")], "in the catalog's order"


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    record = Record(tmp_path / "record.json")
    needy = replace(part("needy"), packages=("json", "no_such_one", "nor_this"))
    run_part(needy, Day(tmp_path), record)
    assert Record.read(record.path).skipped == "not installed: no_such_one, nor_this"
    run_part(replace(part("large"), in_tiny=False), Day(tmp_path, tiny=True), record)
    assert "tiny" in Record.read(record.path).skipped


def test_a_day_and_an_outcome_come_back_as_they_went(tmp_path: Path) -> None:
    day = Day(tmp_path, "elsewhere:0", "a.B", True, tmp_path / "model", seconds=3.5)
    assert Day.from_json(day.to_json()) == day
    assert Day.from_json(command_line(part("good"), day)[-1]) == day
    assert day.kind == "elsewhere"
    record = Record(tmp_path / "record.json")
    record.figure("a", 1, "s")
    record.note("b")
    assert Record.read(record.path) == record


def test_a_run_chooses_the_device_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    assert fit_options(Day(tmp_path))[0] == "--trainer.accelerator=gpu"
    own = fit_options(Day(tmp_path, "elsewhere:0", "a.B"))
    assert "--trainer.strategy.init_args.device=elsewhere:0" in own
    run = FitRun("x", ("--config", "sokoban.yaml"))
    assert "--ckpt_path" not in run.line(Day(tmp_path))
    (tmp_path / "runs/x/checkpoints").mkdir(parents=True)
    (tmp_path / "runs/x/checkpoints/last.ckpt").touch()
    assert run.line(Day(tmp_path))[-2:] == ["--ckpt_path", "last"]


def test_two_runs_are_compared_metric_by_metric() -> None:
    one = {"train/loss": [None, 1.0, -2.0], "time/update": [1.0, 2.0, 3.0], "train/kl": [0, 0, 0]}
    other = {"train/loss": [None, 1.0, -1.0], "time/update": [9.0, 9.0, 9.0], "train/kl": [0, 0, 0]}
    assert relative_gaps(one, other) == {"train/loss": 0.5, "train/kl": 0.0}
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        relative_gaps(one, {"train/loss": [1.0]})


def entries() -> dict[int, str]:
    """Return the log's entries by number."""
    text = (ROOT / "benchmarks/LOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\d+)\. ", text, flags=re.MULTILINE)[1:]
    return {int(number): body for number, body in zip(parts[::2], parts[1::2], strict=True)}


WITHOUT_ROW = (
    (11, "The aim, twice"),
    (13, "The aim, twice"),
    (14, "The aim, twice"),
    (18, "aim: no longer"),
    (18, "aim 2.2"),
    (19, "The aim was 2.2"),
    (21, "every aim of this log"),
    (24, "The aim was five seeds of every recipe"),
    (38, "Every aim of these is met"),
)
"""Aims of a CPU alone (an iteration before and after, loops beside a run), of learning that no GPU
day repeats, and words about aims."""
NUMBER = r"(?:\d+(?:\.\d+)?|half)"
RESTATED = re.compile(rf"(?: times|,| at| of| are| and)* ({NUMBER})")


def restated(text: str) -> list[float]:
    """Return the numbers that follow the word aim at the beginning of a text."""
    found, at = [], 0
    while (match := RESTATED.match(text, at)) is not None:
        found.append(0.5 if match[1] == "half" else float(match[1]))
        at = match.end()
    return found


def without_a_row(aims: Sequence[Aim]) -> list[tuple[int, str]]:
    """List what the log calls an aim that is neither in an aim's words nor repeats the numbers of
    an earlier entry's."""
    missing = []
    for entry, body in entries().items():
        quoted = [aim.words for aim in aims if aim.entry == entry]
        quoted += [words for number, words in WITHOUT_ROW if number == entry]
        spans = [(m.start(), m.end()) for q in quoted for m in re.finditer(re.escape(q), body)]
        bounds = {b for aim in aims if aim.entry <= entry for b in (aim.at_least, aim.at_most)}
        for mention in re.finditer(r"\b[Aa]im(?:s|ed)?\b", body):
            numbers = restated(body[mention.end() :])
            is_quoted = any(begin <= mention.start() < end for begin, end in spans)
            if not is_quoted and not (numbers and bounds.issuperset(numbers)):
                missing.append((entry, body[mention.start() : mention.end() + 40]))
    return missing


def test_everything_that_the_log_calls_an_aim_has_a_row() -> None:
    assert without_a_row(AIMS) == []
    for entry in (2, 22):
        left = [aim for aim in AIMS if aim.entry != entry]
        assert entry in {number for number, _ in without_a_row(left)}
    assert all(words in entries()[entry] for entry, words in WITHOUT_ROW)


def test_what_aims_name_beside_others_is_measured() -> None:
    names = [aim.figure.split("/")[1:] for aim in AIMS if aim.figure.startswith("beside/")]
    for model, what, way, ratio in names:
        assert part_named(f"beside_{model}").module == "beside"
        chosen = race(Day(Path()), model)
        if what == "training":
            assert way in (*chosen.ways, "best_against_best")
            assert ratio in ("to_trl", "of_limit")
        else:
            assert chosen.plays
            assert ratio == "to_generate"


def test_larger_shapes_need_trl_and_room_for_both_sides() -> None:
    day, h100, h200 = Day(Path()), 79 * 2**30, 139 * 2**30
    for name in BESIDE_TRL:
        assert {"trl", "datasets"} <= set(part_named(f"beside_{name}").packages)
        if name != "7b":
            race(day, name).check_room(h200 if name == "3b" else h100)
    assert race(day, "0.5b_lora").needed < race(day, "0.5b").needed / 3
    with pytest.raises(SkipPart, match=r"both sides' weights and what trains them are 21\d GiB"):
        race(day, "7b").check_room(h200)
    with pytest.raises(SkipPart, match="are 92 GiB"):
        race(day, "3b").check_room(h100)


@pytest.mark.parametrize("aim", AIMS, ids=lambda aim: aim.figure)
def test_an_aim_is_in_the_words_of_its_entry(aim: Aim) -> None:
    assert aim.words in entries()[aim.entry]
    assert aim.at_least is None or aim.at_most is None


def test_aims_are_judged_by_their_figures() -> None:
    most, least = (next(aim for aim in AIMS if getattr(aim, k)) for k in ("at_most", "at_least"))
    free = next(aim for aim in AIMS if aim.bound == "–")
    assert most.at_most is not None
    assert least.at_least is not None

    def judged(aim: Aim, value: float, *, tiny: bool = False) -> Verdict:
        return aim.verdict({aim.figure: Figure(aim.figure, value)}, tiny=tiny)

    assert judged(most, most.at_most) is Verdict.MET
    assert judged(most, most.at_most * 1.01) is Verdict.MISSED
    assert judged(least, least.at_least) is Verdict.MET
    assert judged(least, least.at_least * 0.99) is Verdict.MISSED
    assert judged(free, 1.0) is Verdict.MEASURED
    assert free.verdict({}) is Verdict.OPEN
    assert judged(least, least.at_least, tiny=True) is Verdict.NOT_JUDGED


def test_the_page_has_every_aim_and_a_row_per_variant(tmp_path: Path) -> None:
    figures = (
        Figure("speed/0.5b/lora/decode", 12345.0, "tokens/s"),
        Figure("speed/0.5b/lora/update_mfu", 0.4321),
        Figure("speed/0.5b/graphs_gain", 1.5),
        Figure("vllm/0.5b/rollout", 777.0, "tokens/s"),
        Figure("numerics/bf16/flash/gap", 0.25),
        Figure("numerics/bf16/flash/mean_gap", 0.03),
        Figure("numerics/fp32/cpu_gap", 2e-5),
        Figure("beside/tiny/rollout_short/fp32", 3.25, "trajectories/s"),
        Figure("beside/tiny/rollout_short/fp32/to_generate", 2.5),
        Figure("beside/7b_lora/training/bf16", 0.5, "trajectories/s"),
        Figure("beside/7b_lora/training/bf16/of_limit", 0.25),
        Figure("beside/7b_lora/training/bf16/to_trl", 1.75),
        Figure("beside/7b_lora/training/best_against_best/to_trl", 1.75),
    )
    outcome = PartResult("speed_0.5b", Status.DONE, figures=figures)
    page = to_markdown(Day(tmp_path), PARTS, {"speed_0.5b": outcome})
    for aim in AIMS:
        assert f"| {aim.entry} | {aim.what} | {aim.bound} |" in page
    (row,) = (line for line in page.splitlines() if line.startswith("| 0.5b | lora |"))
    assert "12,345" in row
    assert "0.4321" in row
    assert "| 0.5b | vLLM | – | – | 777 |" in page
    assert "| bf16, flash | 0.25 | 0.03 |" in page
    assert "| tiny | rollout_short | fp32 | 3.25 | 2.5 | – | – |" in page
    assert "| 7b_lora | training | bf16 | 0.5 | – | 1.75 | 0.25 |" in page
    assert page.count("| 7b_lora |") == 1, "the best of each has no rate of its own"
    assert page.count("not run yet") == len(PARTS) - 1
    assert "Seconds, planned" not in page
    assert "Memory, planned" not in page
    widths = {
        line.count("|") for line in page.splitlines() if line.startswith(("| shape", "| 0.5b"))
    }
    assert len(widths) == 1


def test_the_page_has_planned_and_measured_seconds_and_memory(tmp_path: Path) -> None:
    assert tuple(SHARES) == PHASES
    factors = dict(zip(PHASES, (1.25, 0.5, 1.0, 2.0), strict=True))
    figures = [Figure(f"seconds/3b/{k}/planned_to_measured", v) for k, v in factors.items()]
    figures.append(Figure("seconds/largest_error", 0.976))
    for phase, planned, measured in (
        ("rollout", 100.0, 110.0),
        ("score_pass", 90.0, 95.0),
        ("update", 300.0, 305.0),
    ):
        figures.append(Figure(f"memory/0.5b/{phase}/planned", planned, "MiB"))
        figures.append(Figure(f"memory/0.5b/{phase}/measured", measured, "MiB"))
    figures.append(Figure("memory/0.5b/peak_ratio", 0.9836))
    outcome = PartResult("seconds", Status.DONE, figures=tuple(figures))
    page = to_markdown(Day(tmp_path), PARTS, {"seconds": outcome})
    assert "The largest error of a phase is 98 %." in page
    assert "| 3b | 1.25 | 0.5 | 1 | 2 |" in page
    assert "| 0.5b | 100 and 110 MiB | 90 and 95 MiB | 300 and 305 MiB | 0.9836 |" in page
