"""What one study may tell another: which, how much of it, and what it must never become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.space import SearchSpace
from storage.store import Store
from sweep.config import load_text
from sweep.errors import UsageError
from sweep.model import ArmConfig, Diagnosis, Phase, Verdict
from sweep.proposing import Proposing, proposer_of
from sweep.search.view import Origin, Told
from sweep.told import BATCH, told
from sweep.warmstart import WEIGHT, WarmStart, alike, expected_gpus, gpus, source, sources
from tests.core_tests.search_rows import fill, yaml

CHAIN, TREE = ArmConfig("EAGLE3", "head", 6, 1, 7), ArmConfig("EAGLE3", "head", 4, 4, 16)
OOM = Diagnosis(
    Verdict.LAUNCH_OOM, Phase.GRAPH_CAPTURE, "gpu_oom", "out of memory", "", dominates=("num_steps", "num_draft_tokens")
)
USELESS = Diagnosis(Verdict.DRAFTER_INEFFECTIVE, Phase.PROBE, "accept_length_one", "1.0", "")


def truth(config: ArmConfig, level: int) -> tuple[float, float]:
    return (100.0 * level**0.8 * (1.4 if config.speculative else 1.0), 2.0 if config.speculative else 1.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/w.db") as store:
        fill(store, {CHAIN: None, TREE: None, ArmConfig("EAGLE3", "head", 6, 4, 16): OOM}, truth)
        yield store


def spec(more: str = "warm_start: true", **changes: str):
    return load_text(yaml("new", **changes, more=more))


def test_the_same_model_on_the_same_gpu_is_alike(store: Store) -> None:
    (found,) = alike(store, spec(), frozenset({"NVIDIA H200"}))
    assert found.study == "night"
    assert [row.verdict for row in found.rows] == [Verdict.COMPLETE, Verdict.COMPLETE, Verdict.LAUNCH_OOM]
    assert found.baseline == pytest.approx({1: 100.0, 16: 100.0 * 16**0.8})
    assert expected_gpus(store, spec()) == gpus(store, store.study("night").id) == {"NVIDIA H200"}


@pytest.mark.parametrize(
    ("changes", "on", "words"),
    [
        ({"model": "/models/other"}, "NVIDIA H200", "its target model is /models/target, here it is /models/other"),
        ({}, "NVIDIA A100", "its GPUs are NVIDIA H200, here they are NVIDIA A100"),
        ({"engine": "simulated"}, "NVIDIA H200", "its engine is sglang, here it is simulated"),
    ],
    ids=["model", "gpu", "engine"],
)
def test_anything_else_is_not(store: Store, changes: dict[str, str], on: str, words: str) -> None:
    model = changes.pop("model", "/models/target")
    here = spec(more="warm_start: night", model=model).model_copy(update=changes)
    assert alike(store, here, frozenset({on})) == []
    with pytest.raises(UsageError, match=words):
        sources(store, here, frozenset({on}))


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        ("2.5", None, "its accept length was forced to 2.5, here it is left to the drafter"),
        (None, "2.5", "its accept length was left to the drafter, here it is forced to 2.5"),
        ("2.5", "3", "its accept length was forced to 2.5, here it is forced to 3"),
        ("2.5", "2.50", None),
    ],
)
def test_a_forced_accept_length_teaches_no_other(
    store: Store, there: str | None, here: str | None, words: str | None
) -> None:
    def text(name: str, forced: str | None, more: str = "") -> str:
        env = "" if forced is None else f", env: {{SGLANG_SIMULATE_ACC_LEN: '{forced}'}}"
        return yaml(name, more=more).replace("page-size: 1}", f"page-size: 1}}{env}")

    fill(store, {CHAIN: None}, truth, text=text("pretended", there))
    asks = load_text(text("new", here, more="warm_start: pretended"))
    if words is None:
        assert [one.study for one in sources(store, asks, frozenset())] == ["pretended"]
    else:
        with pytest.raises(UsageError, match=words):
            sources(store, asks, frozenset())


def test_rows_are_weighted_down_and_brought_to_this_host(store: Store) -> None:
    (found,) = alike(store, spec(), frozenset())
    here = {level: 1.5 * value for level, value in found.baseline.items()}  # half as fast again
    chain = found.prior(here)[0]
    assert chain.values == {}  # never a value of this study
    for level, seen in chain.observations.items():
        assert seen.throughput == pytest.approx(1.5 * truth(CHAIN, level)[0])
        error = chain.stderr[f"output_throughput@{level}"] / seen.throughput
        assert error == pytest.approx(0.025 / WEIGHT**0.5)


def test_a_drafter_is_known_by_its_path(store: Store) -> None:
    same = load_text(yaml("new").replace("name: head, path: /drafters/head", "name: ours, path: /drafters/head"))
    other = load_text(yaml("new", drafter="/drafters/v2"))
    night = store.study("night")
    assert {row.config.draft_model for row in source(store, night, same).rows} == {"ours"}
    assert {row.config.draft_model for row in source(store, night, other).rows} == {"/drafters/head"}


def test_seeds_are_spared_and_nothing_of_it_is_settled(store: Store) -> None:
    study = fill(store, {}, truth, text=yaml("new", more="warm_start: true"))
    here = spec()
    cold = proposer_of(here, SearchSpace.from_spec(here))
    assert cold.propose([]).origin is Origin.SEED
    warm = Proposing(proposer_of(here, SearchSpace.from_spec(here)), WarmStart(store, study, here))
    assert warm.begin() == {"studies": [{"study": "night", "launches": 3}]}
    found = warm.propose([])
    assert found is not None
    assert found.origin is Origin.SAMPLER
    assert found.why.endswith("warm start from night")
    assert warm.proposer.known([]).excluded(CHAIN) is None
    assert not warm.proposer.known([]).settled(CHAIN)
    assert warm.recommend([]) == []


def test_what_was_chosen_at_the_start_is_kept(store: Store) -> None:
    study = fill(store, {}, truth, text=yaml("new", more="warm_start: true"))
    first = WarmStart(store, study, spec())
    chosen = first.begin()
    assert chosen is not None
    store.add_event(study.id, None, "warm_start", chosen)
    fill(store, {CHAIN: None}, truth, text=yaml("later"))
    again = WarmStart(store, study, spec())
    assert again.begin() is None
    assert again.words == "warm start from night"
    assert again.prior() == first.prior()


def test_a_drafter_that_never_accepted_there_is_left_out(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/w.db") as store:
        fill(store, {CHAIN: USELESS}, truth)
        study = fill(store, {}, truth, text=yaml("new", more="warm_start: true"))
        warm = Proposing(proposer_of(spec(), SearchSpace.from_spec(spec())), WarmStart(store, study, spec()))
        warm.begin()
        assert warm.propose([]) is None
        ended = warm.why_ended([], None)
    assert ended is not None
    assert ended["reason"] == "space"


def test_more_of_what_ran_out_runs_out(store: Store) -> None:
    row = store.trials(store.study("night").id)[2]

    def ruled_out(trial) -> tuple[str, ...]:
        return told([trial], {})[0].dominates

    assert ruled_out(row) == ("num_steps", "num_draft_tokens", *BATCH, "mem-fraction-static")
    # a cache that could not be made may want more of the memory, not less
    assert ruled_out(replace(row, phase=Phase.KV_POOL)) == ("num_steps", "num_draft_tokens", *BATCH)
    assert ruled_out(replace(row, dominates=())) == ()
    assert ruled_out(replace(row, verdict=Verdict.CRASHED)) == ("num_steps", "num_draft_tokens")


def test_out_of_memory_excludes_a_larger_share_and_a_larger_batch() -> None:
    here = spec(more="")

    def at(share: float, batch: int) -> ArmConfig:
        return replace(TREE, extra=(("max-running-requests", batch), ("mem-fraction-static", share)))

    names = ("num_draft_tokens", *BATCH, "mem-fraction-static")
    known = proposer_of(here, SearchSpace.from_spec(here)).known(
        [Told(at(0.8, 32), None, Verdict.LAUNCH_OOM, dominates=names)]
    )
    assert known.excluded(at(0.9, 32))
    assert known.excluded(at(0.8, 48))
    assert known.excluded(at(0.7, 32)) is None
    assert known.excluded(at(0.9, 16)) is None


@pytest.mark.parametrize(
    ("history", "budget", "reason"),
    [
        ([Told(CHAIN, None, Verdict.COMPLETE)] * 3, 3, "budget"),
        ([Told(CHAIN, None, Verdict.COMPLETE)], 3, None),
    ],
)
def test_why_a_search_has_ended(history: list[Told], budget: int, reason: str | None) -> None:
    here = spec(more="")
    found = Proposing(proposer_of(here, SearchSpace.from_spec(here))).why_ended(history, budget)
    assert (found["reason"] if found else None) == reason
