"""Captured decode steps give the results of plain ones, and read no tensor that has moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.kernels.kv_cache import RaggedCache
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.engines import InProcess, cuda_graphs
from ragen_pl.rollout.engines.cuda_graphs import Capture, CaptureOrRun, GraphedDecodeStep, Step
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.types import Completion, EpisodeId, Request, Sampling

PIECES = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="module", params=["own", "fused"])
def language(request: pytest.FixtureRequest) -> LanguageModel:
    small = EmbeddedModel(
        hidden_size=32, intermediate_size=64, num_heads=4, num_key_value_heads=2, init_std=0.3
    )
    language = small.build(PIECES, seed=3)
    if request.param == "fused":
        use_fused_rms_norm(language.model)
    return language


class Tracer:
    """A capture as a GPU does it: operations and the tensors they ran on, whatever Python would do
    the next time."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, step: Step) -> Step:
        self.captured += 1
        # Before operations are split into others, which older versions of PyTorch round elsewhere.
        operations = make_fx(step, pre_dispatch=True)()

        def run() -> Tensor:
            self.replayed += 1
            outcome: Tensor = operations()
            return outcome

        return run


def play(
    language: LanguageModel, capture: Capture | CaptureOrRun | None, *, is_bf16: bool = False
) -> list[list[Completion]]:
    """Sample turns of prompts of unequal length in which rows stop one after another."""
    new_capture: Callable[[], Capture] | None = None
    if isinstance(capture, CaptureOrRun):
        new_capture = capture
    elif capture is not None:
        new_capture = lambda: capture  # noqa: E731
    engine = InProcessSampler(
        language.model,
        stop_id=language.markers.end,
        seed=0,
        max_context=256,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16, enabled=is_bf16),
        new_capture=new_capture,
        value_head=value_head(language),
    )
    prefixes = [[3, *range(10, 12 + m)] for m in range(6)]
    history: list[list[Completion]] = []
    for turn in range(3):
        requests = [Request(tuple(ids), EpisodeId(5, 0, m), turn) for m, ids in enumerate(prefixes)]
        history.append(engine(requests, Sampling(1.0, 24)))
        for ids, completion in zip(prefixes, history[-1], strict=True):
            ids += [*completion.token_ids, 4, *range(20, 21 + turn)]
    return history


def value_head(language: LanguageModel) -> nn.Module:
    head = Policy(language.model, with_values=True).value_head
    assert head is not None
    nn.init.ones_(head.weight)
    return head


def assert_equal(
    one: Sequence[Sequence[Completion]], other: Sequence[Sequence[Completion]]
) -> None:
    for first, second in zip(one, other, strict=True):
        for a, b in zip(first, second, strict=True):
            assert a.token_ids == b.token_ids
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-5)
            assert a.values == pytest.approx(b.values, abs=1e-4)


@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
def test_replayed_steps_equal_plain_ones(language: LanguageModel, is_bf16: bool) -> None:
    tracer = Tracer()
    assert_equal(play(language, tracer, is_bf16=is_bf16), play(language, None, is_bf16=is_bf16))
    assert tracer.replayed > 3 * tracer.captured > 0


def test_moved_buffers_are_captured_again() -> None:
    cache, tracer = RaggedCache(2, 60), Tracer()

    def decode_step(ids: Tensor, positions: Tensor, mask: Tensor, cache: RaggedCache) -> Tensor:
        states = (ids * 1.0)[:, None, :, None].expand(-1, 1, -1, 2)
        keys, _ = cache.update(states, states, 0)
        return (keys[:, 0, :, 0] * mask[:, 0, 0]).sum(1, keepdim=True)

    replayed, ones = GraphedDecodeStep(decode_step, lambda: tracer), np.ones(2, np.int64)

    def step(*tokens: int) -> list[float]:
        positions, mask = cache.open_block(1, ones)
        said = replayed(torch.tensor(tokens)[:, None], positions, mask, cache)
        cache.close_block(ones)
        return said[:, 0].tolist()

    assert step(1, 2) == [1, 2]
    assert step(10, 20) == [11, 22]
    assert step(100, 200) == [111, 222]
    cache.reorder(np.array([1, 0]))
    assert [step(1000, 2000), step(1, 1), step(2, 2)] == [[1222, 2111], [1223, 2112], [1225, 2114]]
    before = tracer.captured
    replayed.forget()
    assert [step(0, 0), step(0, 0)] == [[1225, 2114]] * 2
    assert tracer.captured == before + 1


def test_a_gpu_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    InProcess().check(1)
    with pytest.raises(ValueError, match="cuda_graphs is true, but there is no CUDA GPU"):
        InProcess(cuda_graphs=True).check(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    InProcess(cuda_graphs=True).check(1)


def test_the_key_captures_on_the_gpu(language: LanguageModel) -> None:
    def build(engine: InProcess) -> InProcessSampler:
        return engine.build(language, 0, 64, lambda: torch.autocast("cpu", enabled=False))

    assert build(InProcess(cuda_graphs=True)).new_capture is cuda_graphs.GraphCapturer
    assert build(InProcess(cuda_graphs=False)).new_capture is None
    assert isinstance(build(InProcess()).new_capture, CaptureOrRun)


def test_by_default_a_cpu_captures_nothing(language: LanguageModel) -> None:
    engine = InProcess().build(language, 0, 64, nullcontext)
    engine([Request((3, 10, 11), EpisodeId(0, 0, 0), 0)], Sampling(1.0, 5))
    assert not isinstance(engine.decode_step, GraphedDecodeStep)


@pytest.mark.parametrize("error", [ConfigError("no"), torch.OutOfMemoryError("full")], ids=repr)
def test_after_a_failure_steps_run_uncaptured(
    language: LanguageModel, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[Step] = []

    def fail(step: Step) -> Step:
        tried.append(step)
        raise error

    source = CaptureOrRun(lambda: fail)
    assert_equal(play(language, source), play(language, None))
    assert len(tried) == 1, "not again, in this call or a later one"
    (said,) = caplog.messages
    assert said == f"decode steps are not captured as CUDA graphs: {error}"


def test_logits_of_all_captured_steps_share_their_memory() -> None:
    """Also of a larger number of rows, which the buffer was not made for; results are copies."""
    tracer, results = Tracer(), {}
    replayed = GraphedDecodeStep(lambda ids, *_: ids * 2.0, lambda: tracer)
    buffers = []
    for rows in (3, 2, 4, 2, 3, 4):
        cache, ones = RaggedCache(rows, 60), np.ones(rows, np.int64)
        for _ in range(3):
            positions, mask = cache.open_block(1, ones)
            results[rows] = replayed(torch.full((rows, 1), rows), positions, mask, cache)
            cache.close_block(ones)
        assert replayed.logits is not None
        buffers.append(replayed.logits.data_ptr())
    assert buffers[0] == buffers[1] != buffers[2] == buffers[-1]
    assert tracer.captured == 3, "a step of each number of rows"
    assert {rows: set(said.flatten().tolist()) for rows, said in results.items()} == {
        2: {4},
        3: {6},
        4: {8},
    }


@contextmanager
def fake_graph(*_: object, **__: object) -> Iterator[None]:
    """Fail as CUDA does at the end of a capture that has failed: without the reason."""
    try:
        yield
    except RuntimeError:
        raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """CUDA's captures without a GPU; the streams that were made current."""
    made_current: list[str] = []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", fake_graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "before")
    monkeypatch.setattr(torch.cuda, "set_stream", made_current.append)
    return made_current


def test_a_step_that_cannot_be_captured_is_refused(streams: list[str]) -> None:
    def waits() -> Tensor:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with pytest.raises(ValueError, match=r"cuda_graphs is true.*not permitted when stream is"):
        cuda_graphs.GraphCapturer()(waits)
    assert streams == ["before"], "a failed capture does not leave its stream current"


def test_captured_steps_are_dropped_when_a_call_fails(language: LanguageModel) -> None:
    engine = InProcessSampler(
        language.model, stop_id=-1, seed=0, max_context=256, new_capture=Tracer
    )
    engine([Request((3, 10, 11), EpisodeId(0, 0, 0), 0)], Sampling(1.0, 5))
    decode_step = engine.decode_step
    assert isinstance(decode_step, GraphedDecodeStep)
    decode_step.steps = {(1,): None}
    with pytest.raises(IndexError):
        engine([Request((3, 1 << 30), EpisodeId(0, 0, 1), 0)], Sampling(1.0, 5))
    assert not decode_step.steps


def test_each_call_captures_anew(language: LanguageModel) -> None:
    """A pool of memory whose graphs are gone is not used again: PyTorch refuses it."""
    tracers: list[Tracer] = []

    def new_capture() -> Tracer:
        tracers.append(Tracer())
        return tracers[-1]

    engine = InProcessSampler(
        language.model, stop_id=-1, seed=0, max_context=256, new_capture=new_capture
    )
    for turn in range(2):
        engine([Request((3, 10, 11), EpisodeId(turn, 0, 0), 0)], Sampling(1.0, 5))
    assert [bool(each.captured) for each in tracers] == [True, True, False]


@pytest.mark.usefixtures("streams")
def test_a_step_on_the_cpu_is_not_captured() -> None:
    """CUDA would record nothing, and replay nothing."""
    with pytest.raises(ValueError, match="cuda_graphs is true, but the model is on cpu"):
        cuda_graphs.GraphCapturer()(lambda: torch.zeros(1))


def test_hooks_are_not_left_out() -> None:
    language = EmbeddedModel(hidden_size=16, num_heads=2, num_key_value_heads=1).build(PIECES, 0)
    layer = next(m for m in language.model.modules() if isinstance(m, nn.Linear))
    layer.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(ValueError, match="cuda_graphs is true, but hooks"):
        play(language, Tracer())
