"""The contract kit finds planted defects and is silent about healthy environments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ragen_pl.cli.config.files import FOLDER, prepare
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.contract_kit import assert_contract, examine_env
from ragen_pl.envs.contract_kit.checks import CHECKS, answers, starts
from ragen_pl.envs.contract_kit.examination import examine
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import LONGEST, play, play_at_random
from ragen_pl.runtime import slow_calls
from ragen_pl.runtime.findings import Finding, Severity, has_failed
from tests.support import broken_envs as broken
from tests.support.extras import need_packages
from tests.support.lamps import Stairs

EXPERIMENTS = sorted(path.stem for path in (FOLDER / "experiment").glob("*.yaml"))

FAILURES: list[tuple[type[TextEnv], str, str]] = [
    (broken.Restless, "contract", r"reset\(seed=0\)"),
    (broken.NoisyStart, "contract", "the seed alone decides the start"),
    (broken.Endless, "contract", "success"),
    (broken.Immortal, "contract", "after the end"),
    (
        broken.Encore,
        "end",
        r"after the end.* returned .*: it earned 1, changed state\[.step_number.\]: 9 and 10;",
    ),
    (
        broken.Forward,
        "contract",
        r"render_text changes the state, at state\[.step_number.\]: 3 and 4;",
    ),
    (
        broken.Painter,
        "questions",
        r"^render changes the state \(seed 0\), at state\[.lit.\]: False",
    ),
    (broken.Lettered, "contract", "^vocabulary returned 'more less'; .* return a list of texts$"),
    (broken.Gambler, "shared state", "global random state"),
    (
        broken.Recorder,
        "contract",
        r"the seed alone decides .*later noise stays out of get_state.*state\['rng'\]\[1\]\[1\]",
    ),
    (
        broken.Literal,
        "contract",
        r"raised KeyError: 0 .*; state\['wanted'\] has the key 0, which comes back from JSON",
    ),
    (broken.Numbered, "copies", r"restored by set_state .* has another reward: 0.0 and 1.0 in the"),
    (broken.Unsung, "expert", r"of (\d+) starts: .* ended \1 of them, none with .*success"),
    (broken.Wordy, "expert", r"a tuple of actions: \(thought, \(action,\)\), with the comma"),
    (broken.Startless, "starts", "^reset raised IndexError: no room"),
    (broken.LateFault, "starts", r"^seed 7: reset raised IndexError: no room for it"),
    (broken.NarrowSeeds, "starts", "an evaluation set's seed|run seed 3"),
    (broken.Forgetful, "copies", "restored by set_state .* does not go on"),
    (broken.Resentful, "history", r"plays it otherwise after reset: step \d .* another reward"),
    (broken.Odometer, "history", "plays it otherwise after reset: .*ors opened: [23]"),
    (broken.Siamese, "copies", "deep-copied .* does not go on"),
    (broken.Locked, "copies", "cannot be pickled"),
    (broken.Fidgety, "questions", "expert_turn changes the state"),
    (broken.Muser, "questions", "hindsight_turn changes the state"),
    (broken.Hashed, "processes", r"the start of seed \d is another one"),
    (broken.Fragile, "hostile answers", "step raised ValueError"),
    (broken.Suicidal, "hostile answers", "ended its process"),
    (broken.Boastful, "episodes", "optimal_length is 3"),
    (broken.Counting, "features", r"differ from before, at features\.ravel\(\)\[1\]: 0\.001"),
    (broken.Hopeless, "expert", "nothing to imitate"),
    (broken.Cheat, "expert", "actions of on, off"),
    (
        broken.Mirrored,
        "symmetries",
        r"\d+ of 32 images of episodes do not keep the dynamics; symmetry 1 at seed \d+: action 1,",
    ),
    (broken.Unselfish, "symmetries", r"none of the 1 symmetries is the identity"),
    (broken.Lopsided, "symmetries", r"none of the 7 symmetries is the identity"),
    (broken.Stingy, "rewards", "the environment's reward is 0 in every turn"),
]
WARNINGS: list[tuple[type[TextEnv], str, str]] = [
    (broken.SeededRecorder, "contract", r"holds a random generator, at state\['rng'\]"),
    (broken.Repeating, "copies", "noise repeats after set_state"),
    (broken.Abbreviated, "methods", "Abbreviated defines vocab, .* a run calls vocabulary"),
    (
        broken.Twofold,
        "starts",
        r"start_key takes different tasks for one: 57 of 63 .* seeds 0 and 1, where action 1, "
        "'0', has another reward",
    ),
    (broken.Fibber, "thoughts", r"the expert: (\d+) of \1 judged thoughts are untrue, first 'dim'"),
    (broken.Speechless, "thoughts", r"hindsight_turn writes nothing for any of \d+ plans"),
    (
        broken.Misremembering,
        "thoughts",
        r"hindsight_turn: (\d+) of \1 judged thoughts are untrue, first 'dim' \(seed \d+\)",
    ),
    (
        broken.Misspelled,
        "tools",
        r"24 of the expert's 48 calls are wrong, first .*gate.* answered with .* no 'gate'",
    ),
    (broken.Mislaid, "tools", r"calls in random play raise KeyError; .*read.* failed: KeyError"),
    (broken.Mute, "starts", "the observation at the start of seed 0 is empty"),
    (broken.Gossip, "shared state", "Gossip.told"),
    (broken.Chronicler, "episodes", "observations grow"),
    (broken.Gift, "random play", "nothing to learn"),
    (broken.Misled, "expert", "and random play .* learns to fail"),
    (broken.Slow, "speed", "a step takes 8"),
    (broken.Unreachable, "rewards", "random play always has the reward 0, and there is no expert"),
    (broken.Blurred, "features", "have the features of another one"),
]


def findings(env: TextEnv, check: str) -> list[Finding]:
    """Run one check."""
    subject = ExaminedEnv(env, "env", seconds=0.5)
    return [line.finding for line in examine(subject, {check: CHECKS[check]})]


def check(env: TextEnv, name: str) -> Finding:
    """Return the only finding of one check."""
    subject = ExaminedEnv(env, "env", seconds=10.0)  # enough for every start on a busy machine, too
    (line,) = examine(subject, {name: CHECKS[name]})
    return line.finding


@pytest.mark.parametrize(("kind", "name", "told"), FAILURES)
def test_planted_defects_are_failures(kind: type[TextEnv], name: str, told: str) -> None:
    found = check(kind(), name)
    assert found.level is Severity.FAILURE
    assert re.search(told, found.text), found.text


@pytest.mark.parametrize(("kind", "name", "told"), WARNINGS)
def test_what_disappoints_is_a_warning(kind: type[TextEnv], name: str, told: str) -> None:
    found = check(kind(), name)
    assert found.level is Severity.WARNING
    assert found.remedy
    assert re.search(told, found.text), found.text


@pytest.mark.parametrize("kind", [Stairs, broken.Guess, broken.Lucky, broken.SeldomLucky])
def test_healthy_environments_pass_every_check(kind: type[TextEnv]) -> None:
    lines = list(examine_env(kind(), seconds=0.5))
    assert {line.check for line in lines} == set(CHECKS)
    assert [line.text for line in lines if line.finding.level is not Severity.OK] == []


def test_noise_that_seldom_matters_is_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random opponent's first move, say; two more noise seeds once had to show it."""
    levels = []
    for noise_seeds in (starts._MORE_NOISE_SEEDS, 3):
        monkeypatch.setattr(starts, "_MORE_NOISE_SEEDS", noise_seeds)
        subject = ExaminedEnv(broken.SeldomLucky(), "env", seconds=10.0)
        (line,) = examine(subject, {"starts": CHECKS["starts"]})
        levels.append(line.finding.level)
    assert levels == [Severity.OK, Severity.WARNING]


def test_what_follows_the_end_is_told() -> None:
    told = r"after success step raises RuntimeError \(\d episodes\)"
    assert re.fullmatch(told, check(Stairs(), "end").text)


def test_an_end_that_nobody_saw_is_a_note() -> None:
    env = broken.Eternal()
    found = check(env, "end")
    assert found.level is Severity.NOTE
    assert found.text.startswith("no episode ended, so what follows an end has not been seen")
    assert not has_failed([*examine(ExaminedEnv(env, "env"), {"end": CHECKS["end"]})])


def test_a_key_that_json_changes_is_named_in_the_remedy() -> None:
    assert "state['wanted'] has the key 0" in check(broken.Numbered(), "copies").remedy


def test_what_fails_every_check_is_told_once() -> None:
    lines = list(examine_env(broken.Startless(), seconds=0.5))
    levels = {line.check: line.finding.level for line in lines}
    failed = [name for name, level in levels.items() if level is Severity.FAILURE]
    assert failed == ["contract"]
    assert levels["rewards"] is Severity.SKIPPED
    (text,) = (line.finding.text for line in lines if line.check == "speed")
    assert text == "needs what has failed above (reset)"


def test_a_reset_that_ignores_its_seed_is_told_once() -> None:
    found = list(examine_env(broken.SeedBlind(), seconds=0.2))
    failed = [each for each in found if each.finding.level is Severity.FAILURE]
    assert [each.check for each in failed] == ["contract"]
    assert "let the seed decide the start" in failed[0].finding.text
    skipped = [each for each in found if each.finding.level is Severity.SKIPPED]
    assert {each.check for each in skipped} >= {"history", "copies", "processes", "questions"}
    assert {each.finding.text for each in skipped} == {
        "needs what has failed above (a reset that the seed decides)"
    }


def test_what_cannot_be_copied_is_named_once() -> None:
    """Every check plays a copy, and ten of them once said so."""
    lines = list(examine_env(broken.Uncopyable(), seconds=0.5))
    (failed,) = (line for line in lines if line.finding.level is Severity.FAILURE)
    assert failed.check == "contract"
    assert re.search(
        r"cannot copy its attribute lock: TypeError: .*__deepcopy__", failed.finding.text
    )
    skipped = [line.finding.text for line in lines if line.finding.level is Severity.SKIPPED]
    assert len(skipped) >= 9
    assert set(skipped) == {"needs what has failed above (TypeError)"}


def test_an_expert_that_is_asked_through_another_method_is_told_as_itself() -> None:
    assert check(broken.Wordy(), "questions").text.startswith("expert_turn returned ('I know'")


def test_a_slow_environment_is_given_some_answers_of_every_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "HOSTILE", tuple("abcdefghij"))
    monkeypatch.setattr(answers, "_FEWEST", 3)
    monkeypatch.setattr(answers, "_SHARE", 0.0)
    found = check(broken.Guess(), "hostile answers")
    assert found.level is Severity.OK
    assert re.match(r"3 hostile answers .*; 7 more were not given, for want of time", found.text)


def test_steps_of_a_slow_environment_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[str]()
    plain = broken.Slow.step

    def counted(env: broken.Slow, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        steps.append(action)
        return plain(env, action)

    monkeypatch.setattr(broken.Slow, "step", counted)
    subject = ExaminedEnv(broken.Slow(), "env", seconds=0.1)
    names = ("episodes", "copies", "rewards", "speed")
    list(examine(subject, {name: CHECKS[name] for name in names}))
    assert len(steps) < 80


def test_every_check_is_needed_by_a_planted_defect() -> None:
    assert {name for _, name, _ in (*FAILURES, *WARNINGS)} == set(CHECKS)


def test_the_time_of_an_answer_is_not_that_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "HOSTILE", ("1", "null", "x"))
    monkeypatch.setattr(answers, "_LIMIT_S", 0.5)
    assert check(broken.LongStart(), "hostile answers").level is Severity.OK
    found = check(broken.LongAnswer(), "hostile answers")
    assert found.level is Severity.FAILURE
    assert "1 of 3 hostile answers are not answered, first 'null': step took longer" in found.text
    monkeypatch.setattr(answers, "_RESET_LIMIT_S", 0.3)
    found = check(broken.LongStart(), "hostile answers")
    assert found.level is Severity.FAILURE
    assert "at the start of seed 0: reset took longer than 0.3 s" in found.text


def test_tests_of_an_environment_assert_its_contract() -> None:
    with pytest.raises(AssertionError, match=r"(?s)Stingy breaks.*reward is 0.*let step reward"):
        assert_contract(broken.Stingy(), seconds=0.3)


def test_an_examined_environment_stays_as_it_is() -> None:
    env = Stairs()
    env.reset(seed=1)
    before = env.get_state()
    list(examine_env(env, seconds=0.1))
    assert env.get_state() == before


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(name, marks=() if name in ("bandit", "sokoban") else pytest.mark.run)
        for name in EXPERIMENTS
    ],
)
def test_shipped_environments_have_no_failure(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that training plays; their evaluation sets differ in the starts alone."""
    need_packages(experiment)
    monkeypatch.chdir(tmp_path)
    envs = ExaminedRun(prepare(["doctor", "--config", experiment])[1:]).envs
    for key, env in envs.items():
        if key.startswith("data.env") or experiment != "sokoban":
            failed = [line for line in examine_env(env, key, 2.0) if has_failed([line])]
            assert [line.text for line in failed] == []


def test_tasks_without_a_solution_are_no_faults_of_the_expert() -> None:
    found = list(examine_env(broken.Unsolved(), seconds=1.0))
    assert not has_failed(found)
    (told,) = [line.finding.text for line in found if line.check == "expert"]
    # 24 starts, of which the secrets 0, 3, 6 and 9 are solved: 0 to 9, 0 to 9, 0 to 3
    assert told.startswith("no expert for 14 of 24 tasks; of the others, the expert solves 10 of ")


def test_an_environment_without_any_solution_is_told_so() -> None:
    found = list(examine_env(broken.Unanswered(), seconds=1.0))
    assert not has_failed(found)
    (told,) = [line.finding.text for line in found if line.check == "expert"]
    assert told == "no expert for 24 of 24 tasks; a warm start would need one"


def test_methods_that_nobody_calls_are_told_with_the_name_they_should_have() -> None:
    found = findings(broken.Unheard(), "methods")
    assert {finding.level for finding in found} == {Severity.WARNING}
    told = "\n".join(finding.text for finding in found)
    assert re.findall(r"defines (\w+), .* calls (\w+)", told) == [
        ("exprt", "expert_turn"),
        ("is_lst", "is_lost"),
        ("hindsigth_turn", "hindsight_turn"),
        ("vocab", "vocabulary"),
    ]
    assert "thought_grounding(thought) cannot be called as (thought, actions)" in told
    assert len(found) == 5  # an argument more with a default, and helpers, are no slips


def test_tools_may_have_names_that_resemble_methods() -> None:
    assert check(broken.Odometer(), "methods").level is Severity.OK


@pytest.mark.parametrize("examined", ["contract", "episodes"])
def test_a_tool_that_hangs_is_named_while_it_is_waited_for(
    examined: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_calls, "LONG_S", 0.2)
    monkeypatch.setattr(broken.Tired, "seconds", 0.5)
    findings(broken.Tired(), examined)
    told = [line for line in caplog.messages if line.startswith(f"check {examined}: step has ta")]
    assert told, caplog.messages
    assert re.search(r"is in rest \(broken_envs\.py:\d+\); it is waited for", told[0])


def test_the_check_before_a_run_names_a_tool_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_calls, "LONG_S", 0.2)
    monkeypatch.setattr(broken.Tired, "seconds", 0.5)
    check_contract(broken.Tired(), "data.env")
    assert any(
        line.startswith("the check of data.env is Tired: step has taken")
        for line in caplog.messages
    ), caplog.messages


def test_episodes_are_short_however_many_actions_are_allowed() -> None:
    class Long(broken.Guess):
        max_actions = 10**9

        def step(self, action: str) -> broken.Step:
            return "no", 0.0, False, False, {"success": False}

    assert len(play(Long(), 0, 0, play_at_random).steps) == LONGEST


def test_one_start_for_all_seeds_may_be_for_want_of_a_start_key() -> None:
    class Single(Stairs):
        """The same start whatever the seed."""

        def start_key(self) -> str:
            return "the lamp"

    found = check(Single(), "starts")
    assert found.level is Severity.WARNING
    assert "all of 64 seeds give the same start" in found.text
    assert "override start_key with what the first observation hides" in found.remedy
