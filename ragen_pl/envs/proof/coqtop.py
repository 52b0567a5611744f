"""``CoqTop``: Coq's toplevel as a prover, a few processes that all episodes of a process share.

A process is taken back to the place of a theorem for every check and follows its script, a
millisecond or two a step; opening one takes half a second and 100 to 400 MB, too much for each of a
hundred episodes.
"""

from __future__ import annotations

import atexit
import os
import re
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ragen_pl.envs.proof.library import library_folder
from ragen_pl.envs.proof.prover import Check, ProverError, Theorem, Verdict
from ragen_pl.envs.proof.sentences import commands, split_bullets

_PROMPT = re.compile(r"<prompt>([^<]*) < (\d+) \|([^|]*)\| (\d+) < </prompt>\s*$")
_TAGS = re.compile(r"</?(?:infomsg|warning|prompt)>")
_GOAL_NUMBER = re.compile(r" \(ID \d+\)")
_POSITION = re.compile(r"^Toplevel input, characters .*?\n(?:>.*\n)*", re.MULTILINE)
_DONE = "No more goals."
_TIMEOUT = "Timeout!"
_END = b"</prompt>"
_BATCH = 40
"""Commands that are sent at once: few enough for the pipe, many enough not to wait for each."""
_LONGEST = 100_000
"""Bytes of an answer that are kept."""
_MOST_COMMANDS = 20_000
"""Commands after which a process ends: Coq remembers all of them."""
_SLOWEST = 60.0
"""Seconds for a command of the library itself."""
_MEBIBYTE = 1 << 20


class CoqTop:
    """Coq, which is installed on the system (Debian's ``coq``), as a prover.

    A proof counts if Coq's kernel accepts it (``Qed``) and it rests on no axiom but those that are
    allowed (``Print Assumptions``).

    Args:
        command: The command.
        seconds: Time of a tactic.
        memory: Mebibytes of address space of a process.
        processes: Most processes at one time in each process of the run; episodes wait for one.
            Each takes 60 to 350 MB. As many as there are groups is quick: a process stays in its
            theorem.
        axioms: Axioms a proof may rest on, by their full names.
    """

    layout = "hypotheses above the line, the goal below"
    example = "intros n. or apply H."

    def __init__(
        self,
        command: str = "coqtop",
        seconds: int = 3,
        memory: int = 2048,
        processes: int = 8,
        axioms: Sequence[str] = (),
    ) -> None:
        for key, value in (("seconds", seconds), ("memory", memory), ("processes", processes)):
            if value < 1:
                raise ValueError(f"{key}: {value} is not positive")
        library_folder(command)
        self.command, self.seconds, self.memory = command, seconds, memory
        self.processes, self.axioms = processes, tuple(axioms)

    def check(self, theorem: Theorem, script: Sequence[str]) -> Check:
        """Check the last step of a script whose other steps were accepted."""
        try:
            with _pool().lent(self, theorem) as session:
                return session.check(theorem, tuple(script))
        except _ClosedError as error:
            raise ProverError(f"{theorem.name}: {error}") from error


class _ClosedError(Exception):
    """A process that ended or had to be ended; ``late`` if it took too long."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    state: int
    """Number of the state after it; it does not change where a command fails."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A state in a proof."""

    state: int
    goals: str


class _Session:
    """One process of Coq, and how far it has followed a file and a proof."""

    def __init__(self, prover: CoqTop) -> None:
        self.prover = prover
        limits = [f"--as={prover.memory * _MEBIBYTE}", "--core=0", "--fsize=0"]
        prlimit = shutil.which("prlimit")
        prefix = [] if prlimit is None else [prlimit, *limits, "--"]
        self.process = subprocess.Popen(
            [*prefix, prover.command, "-q", "-emacs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"},
        )
        self.file: tuple[str, ...] = ()
        self.marks: list[int] = []
        """States before each command of the file that was followed, and after the last."""
        self.proof: tuple[Theorem, tuple[str, ...], _Place] | None = None
        """The theorem and the script that the process has followed, and where it is."""
        self.num_commands = 0
        self.unread = b""
        self.state = self._next_answer(_SLOWEST).state
        self._must("Set Silent.")  # goals are shown where they are asked for
        self.marks.append(self.state)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """End the process."""
        if self.is_alive:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # what was not read yet
                    continue

    def check(self, theorem: Theorem, script: tuple[str, ...]) -> Check:
        """Follow a script and report on its last step."""
        if not script:
            return Check("accepted", self._follow(theorem, ()).goals, proved=False)
        before = self._follow(theorem, script[:-1])
        try:
            sent = commands(script[-1], self.prover.seconds)
        except ValueError as error:
            return Check("rejected", before.goals, proved=False, message=str(error))
        try:
            return self._last_step(theorem, script, sent, before)
        except _ClosedError as error:
            self.close()
            verdict: Verdict = "time" if error.late else "rejected"
            return Check(verdict, before.goals, proved=False, message=str(error))

    def _last_step(
        self, theorem: Theorem, script: tuple[str, ...], sent: Sequence[str], before: _Place
    ) -> Check:
        after, error = self._try(sent, before.state)
        if after is None:
            verdict: Verdict = "time" if error == _TIMEOUT else "rejected"
            return Check(verdict, before.goals, proved=False, message=error)
        if after.goals != _DONE:
            self.proof = theorem, script, after
            return Check("accepted", after.goals, proved=False)
        fault = self._fault(theorem)
        self._back(before.state)
        if fault:
            return Check("rejected", before.goals, proved=False, message=fault)
        return Check("accepted", _DONE, proved=True)

    def _fault(self, theorem: Theorem) -> str:
        """Close the proof and return what is wrong with it; empty if nothing is."""
        state = self.state
        closed = self._say("Qed.", _SLOWEST)
        if closed.state <= state:
            return self._error(closed)
        name = theorem.name.rpartition(":")[2]
        used = assumptions(self._say(f"Print Assumptions {name}.", _SLOWEST).text)
        if used is None:
            return "the proof was not recorded"
        extra = sorted(used - set(self.prover.axioms))
        return f"the proof rests on {', '.join(extra)}" if extra else ""

    def _follow(self, theorem: Theorem, script: tuple[str, ...]) -> _Place:
        """Bring the process to a place in a proof.

        Raises:
            ProverError: if a command on the way fails.
        """
        if self.proof is not None and self.proof[0] == theorem and self.proof[1] == script:
            return self.proof[2]
        self._enter(theorem)
        self._must(theorem.statement)
        place = self._place()
        for step in script:
            after, error = self._try(commands(step, self.prover.seconds), place.state)
            if after is None:
                raise ProverError(f"{theorem.name}: {step} was accepted before, and now: {error}")
            place = after
        self.proof = theorem, script, place
        return place

    def _place(self) -> _Place:
        """Return the state and the goals in it."""
        state = self.state
        text = _GOAL_NUMBER.sub("", _TAGS.sub("", self._say("Show.", _SLOWEST).text))
        lines = (line.rstrip() for line in text.splitlines())
        return _Place(state, "\n".join(line for line in lines if line))

    def _enter(self, theorem: Theorem) -> None:
        """Go to the place of a theorem in its file, from where the process is in it."""
        self.proof = None
        same = next(
            (i for i, (a, b) in enumerate(zip(self.file, theorem.before, strict=False)) if a != b),
            min(len(self.file), len(theorem.before)),
        )
        same = min(same, len(self.marks) - 1)
        self._back(self.marks[same])
        self.file, self.marks = self.file[:same], self.marks[: same + 1]
        for first in range(same, len(theorem.before), _BATCH):
            self._library_commands(theorem.before[first : first + _BATCH])

    def _library_commands(self, commands: Sequence[str]) -> None:
        """Send commands of the library at once, and read their answers afterwards."""
        parts = [_parts(command) for command in commands]
        state = self.state
        self._write("\n".join(part for each in parts for part in each))
        for command, each in zip(commands, parts, strict=True):
            for part in each:
                answer = self._next_answer(_SLOWEST)
                if answer.state <= state:
                    raise ProverError(f"Coq refuses {part[:200]}: {self._error(answer)}")
                state = answer.state
            self.file = (*self.file, command)
            self.marks.append(state)
        self.state = state

    def _must(self, command: str) -> _Answer:
        """Send a command that has to succeed."""
        state = self.state
        answer = self._say(command, _SLOWEST)
        if answer.state <= state:
            raise ProverError(f"Coq refuses {command[:200]}: {self._error(answer)}")
        return answer

    def _try(self, sent: Sequence[str], start: int) -> tuple[_Place | None, str]:
        """Send commands; go back where one fails, and return None and its error."""
        for command in sent:
            state = self.state
            answer = self._say(command, 2.0 * self.prover.seconds + 5)
            if answer.state <= state:
                self._back(start)
                return None, self._error(answer)
        return self._place(), ""

    def _back(self, state: int) -> None:
        if self.state != state:
            self._say(f"BackTo {state}.", _SLOWEST)
            self.state = state
            self.proof = None

    def _say(self, command: str, seconds: float) -> _Answer:
        self._write(command)
        answer = self._next_answer(seconds)
        self.state = answer.state
        return answer

    def _write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.num_commands += 1 + text.count("\n")
        try:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise _ClosedError("Coq has ended") from error

    def _next_answer(self, seconds: float) -> _Answer:
        """Read up to the next prompt."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                text, end, rest = self.unread.partition(_END)
                if end:
                    self.unread = rest
                    if prompt := _PROMPT.search(text.decode(errors="replace") + _END.decode()):
                        return _Answer(prompt.string[: prompt.start()], int(prompt[2]))
                    continue  # an output that looks like the end of a prompt
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise _ClosedError(_TIMEOUT, late=True)
                block = os.read(self.process.stdout.fileno(), 1 << 16)
                if not block:
                    raise _ClosedError("Coq has ended, as where a proof takes too much memory")
                kept = self.unread if len(self.unread) < _LONGEST else self.unread[-1000:]
                self.unread = kept + block

    @staticmethod
    def _error(answer: _Answer) -> str:
        text = _POSITION.sub("", _TAGS.sub("", answer.text)).strip()
        return " ".join(text.removeprefix("Error:").split())


def _parts(command: str) -> list[str]:
    """Return the sentences of a command of a file: its bullets, and itself."""
    bullets, rest = split_bullets(command)
    return [*bullets, rest] if rest else bullets


def assumptions(text: str) -> set[str] | None:
    """Return the axioms that ``Print Assumptions`` lists; None if the text is no such list.

    Variables of a section are not counted: the theorem is about them.
    """
    if "Closed under the global context" in text:
        return set()
    parts = re.split(r"^(Axioms|Section Variables|[A-Z][\w ]*):\s*$", text, flags=re.MULTILINE)
    if len(parts) == 1:
        return None
    found: set[str] = set()
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title != "Section Variables":
            found.update(re.findall(r"^([A-Za-z_][\w'.]*)\s*(?::|$)", body, flags=re.MULTILINE))
    return found


@dataclass
class _Pool:
    """The processes of this process of the run."""

    owner: int = field(default_factory=os.getpid)
    idle: list[_Session] = field(default_factory=list)
    """The one that was used last is the last."""
    lent_out: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def lent(self, prover: CoqTop, theorem: Theorem) -> Iterator[_Session]:
        """Lend a process, rather one that is in the file of a theorem.

        Raises:
            ProverError: if the process ends.
        """
        session = self._take(prover, theorem)
        try:
            session = session or _Session(prover)
            yield session
        except BaseException:
            if session is not None:
                session.close()  # wherever it is: the next starts anew
            raise
        finally:
            with self.changed:
                self.lent_out -= 1
                if session is not None and session.is_alive:
                    if session.num_commands < _MOST_COMMANDS:
                        self.idle.append(session)
                    else:
                        session.close()
                self.changed.notify()

    def _take(self, prover: CoqTop, theorem: Theorem) -> _Session | None:
        """Take the best idle process; None where a new one may be started."""
        with self.changed:
            while True:
                mine = [each for each in self.idle if _same(each.prover, prover)]
                is_room = len(self.idle) + self.lent_out < prover.processes
                near = [each for each in mine if not is_room or _shared(each, theorem)]
                best = max(near, key=lambda each: _shared(each, theorem), default=None)
                if best is None and not is_room and self.idle:
                    self.idle.pop(0).close()  # the one that was not used for longest
                    is_room = True
                if best is not None or is_room:
                    self.lent_out += 1
                    if best is not None:
                        self.idle.remove(best)
                    return best
                self.changed.wait()

    def close(self) -> None:
        """End all processes that are idle."""
        while self.idle:
            self.idle.pop().close()


def _same(one: CoqTop, other: CoqTop) -> bool:
    return vars(one) == vars(other)


def _shared(session: _Session, theorem: Theorem) -> int:
    """Return how good a process is for a theorem: in its proof, or commands in common."""
    if session.proof is not None and session.proof[0].name == theorem.name:
        return len(theorem.before) + 1
    pairs = zip(session.file, theorem.before, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), len(session.file))


_current: list[_Pool] = []


def _pool() -> _Pool:
    """Return the pool of this process; one that a fork copied belongs to the parent."""
    if not _current or _current[0].owner != os.getpid():
        _current[:] = [_Pool()]
        atexit.register(_current[0].close)
    return _current[0]
