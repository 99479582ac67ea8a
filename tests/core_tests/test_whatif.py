"""`sweep whatif`: predictions against a truth of the model's own form, its errors, and where the data contradict it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from storage.store import Store
from sweep.cli.main import cli
from sweep.errors import UsageError
from sweep.model import ArmConfig, Diagnosis, Phase, Verdict
from sweep.whatif import WhatIf
from tests.core_tests.search_rows import add, fill, yaml


def arm(steps: int, topk: int, tokens: int, *, graphs: bool = True) -> ArmConfig:
    return ArmConfig("EAGLE3", "head", steps, topk, tokens, cuda_graph=graphs)


# The story of Kimi-K2.5 in small: a drafter that is right about half the time, against 90 tok/s without speculation.
def length_of(config: ArmConfig) -> float:
    width = min(config.topk or 1, ((config.num_draft_tokens or 2) - 1) / max(config.num_steps or 1, 1)) or 1
    reach, total = 1.0, 1.0
    for _ in range(config.num_steps or 0):
        reach *= 1 - 0.5 ** (max(width, 1.0) ** 0.5)
        total += reach
    return total


def truth(config: ArmConfig, level: int) -> tuple[float, float]:
    """Tokens/s and accept length."""
    base = {1: 1 / 90, 16: 1 / 60}[level]
    if not config.speculative:
        return level / base, 1.0
    step = base * (1 + 0.08 * (config.num_steps or 0) + 0.01 * math.sqrt(level) * ((config.num_draft_tokens or 1) - 1))
    if not config.cuda_graph:
        step *= 1.5
    return level * length_of(config) / step, length_of(config)


MEASURED = [
    arm(6, 1, 7),
    arm(1, 1, 2),
    arm(3, 1, 4),
    arm(3, 4, 8),
    arm(2, 4, 5),
    arm(4, 4, 16),
    arm(3, 1, 4, graphs=False),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('whatif') / 'w.db'}"


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        fill(store, dict.fromkeys(MEASURED), truth)
        yield store


@pytest.fixture(scope="module")
def what(store: Store) -> WhatIf:
    return WhatIf(store, store.study("night"))


def ask(url: str, *args: str) -> Any:
    done = CliRunner().invoke(cli, ["whatif", "night", *args, "--db", url, "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "config", [arm(2, 1, 3), arm(4, 1, 5), arm(2, 4, 8), arm(5, 4, 16), arm(2, 1, 3, graphs=False)]
)
def test_what_was_not_measured_is_predicted_within_its_interval(what: WhatIf, config: ArmConfig) -> None:
    for found in what.answers([config], [1, 16]):
        speed, length = truth(config, found.concurrency)
        assert found.measured is None
        assert found.predicted.low <= speed <= found.predicted.high
        assert found.predicted.mean == pytest.approx(speed, rel=0.1)
        assert found.accept_length.low <= length <= found.accept_length.high


def test_a_better_drafter_and_the_break_even(what: WhatIf) -> None:
    """Break-even is the accept length at which tokens/s equal the baseline: baseline x step time."""
    config = arm(3, 4, 8)
    speed, length = truth(config, 1)
    (now,) = what.answers([config], [1])
    (better,) = what.answers([config], [1], accept_length=3.0)
    assert now.measured == pytest.approx(speed)
    assert better.predicted.mean == pytest.approx(speed * 3.0 / length, rel=0.03)
    assert now.break_even is not None
    assert now.break_even.mean == pytest.approx(90 / (speed / length), rel=0.03)
    assert better.gain is not None
    assert better.gain.mean == pytest.approx(better.predicted.mean / 90 - 1)


def test_a_load_between_measured_ones_and_one_outside(what: WhatIf) -> None:
    between, outside = what.answers([arm(3, 1, 4)], [4, 64])
    ends = [truth(arm(3, 1, 4), level)[0] for level in (1, 16)]
    assert ends[0] < between.predicted.mean < ends[1]
    assert between.baseline == pytest.approx(math.sqrt(90 * 16 * 60))  # a line over the logarithms
    assert (outside.baseline, outside.gain, outside.break_even) == (None, None, None)
    wide = [one.predicted.high / one.predicted.low for one in (between, outside)]
    assert wide[1] > wide[0]


def test_its_errors_are_those_of_arms_it_has_not_seen(what: WhatIf) -> None:
    assert len(what.checked) == 2 * len(MEASURED)
    for one in what.checked:
        assert one.predicted.mean != pytest.approx(one.measured, rel=1e-6)  # predicted, not looked up
    assert what.widening >= 1.0


def test_the_command_in_words(url: str, store: Store) -> None:
    done = CliRunner().invoke(cli, ["whatif", "night", "--config", "2/1/3", "--accept-length", "2.5", "--db", url])
    assert done.exit_code == 0, done.output
    assert "As if the drafter's accept length were 2.50:" in done.output
    assert "EAGLE3 head 2/1/3" in done.output
    assert "Checked on the study's own 7 configurations, each predicted from the others" in done.output
    assert "contradict" not in done.output
    answer = ask(url, "--concurrency", "16")
    assert [row["concurrency"] for row in answer["answers"]] == [16] * 6
    speeds = [row["predicted"]["estimate"] for row in answer["answers"]]
    assert speeds == sorted(speeds, reverse=True)
    assert answer["contradictions"] == []


def test_where_the_data_contradict_the_model_it_says_so(tmp_path: Path) -> None:
    """One arm at a third of what its neighbours say: as a server that fell back to something slow would be."""

    def odd(config: ArmConfig, level: int) -> tuple[float, float]:
        speed, length = truth(config, level)
        return (speed / 3 if config == arm(3, 1, 4) else speed), length

    more = [arm(2, 1, 3), arm(4, 1, 5), arm(5, 1, 6), arm(2, 4, 8), arm(5, 4, 16)]
    with Store.open(f"sqlite:///{tmp_path}/odd.db") as store:
        what = WhatIf(store, fill(store, dict.fromkeys([*MEASURED, *more]), odd))
    assert what.widening > 1.5
    assert any(line.startswith("EAGLE3 head 3/1/4 at concurrency") for line in what.contradictions())


def test_of_what_was_measured_again_the_newest_trial_speaks(tmp_path: Path) -> None:
    def lower(config: ArmConfig, level: int) -> tuple[float, float]:
        speed, length = truth(config, level)
        return 0.97 * speed, length

    with Store.open(f"sqlite:///{tmp_path}/again.db") as store:
        study = fill(store, dict.fromkeys(MEASURED), truth)
        number = add(store, study, arm(3, 1, 4), lower)
        what = WhatIf(store, study)
    (again,) = what.answers([arm(3, 1, 4)], [1])
    assert (again.trial, again.measured) == (number, pytest.approx(0.97 * truth(arm(3, 1, 4), 1)[0]))
    (once,) = what.answers([arm(6, 1, 7)], [1])
    assert (once.trial, once.measured) == (0, pytest.approx(truth(arm(6, 1, 7), 1)[0]))
    assert [one.trial for one in what.checked if one.config == arm(3, 1, 4)] == [2, 2, number, number]


def test_what_failed_is_not_among_the_most_promising(tmp_path: Path, what: WhatIf) -> None:
    first, *_ = [answer.config for answer in what.ranking(1, 6) if answer.config not in MEASURED]
    names = ("num_steps", "num_draft_tokens")
    oom = Diagnosis(Verdict.LAUNCH_OOM, Phase.GRAPH_CAPTURE, "gpu_oom", "out of memory", "", dominates=names)
    crash = Diagnosis(Verdict.CRASHED, Phase.GRAPH_CAPTURE, "crash", "it died", "")
    for failed in (oom, crash):
        with Store.open(f"sqlite:///{tmp_path}/{failed.reason}.db") as store:
            found = WhatIf(store, fill(store, {**dict.fromkeys(MEASURED), first: failed}, truth))
        ranked = [answer.config for answer in found.ranking(1, 1000)]
        assert set(MEASURED) < set(ranked)
        assert first not in ranked
        larger = [c for c in found.space.candidates if known_larger(c, first)]
        assert (set(larger) & set(ranked) == set()) is (failed is oom), larger


def known_larger(config: ArmConfig, than: ArmConfig) -> bool:
    """Equal but for at least as many steps and draft tokens."""
    sizes = [(c.num_steps or 0, c.num_draft_tokens or 0) for c in (config, than)]
    same = (config.topk, config.cuda_graph) == (than.topk, than.cuda_graph)
    return config != than and config not in MEASURED and same and all(a >= b for a, b in zip(*sizes, strict=True))


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    with (
        Store.open(f"sqlite:///{tmp_path}/none.db") as store,
        pytest.raises(UsageError, match="has no measured candidate yet"),
    ):
        WhatIf(store, fill(store, {}, truth, text=yaml("empty")))
