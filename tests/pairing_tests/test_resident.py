"""Baseline and candidate alive together: where pins and memory allow it, and where an idle neighbour is free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep import pairing
from sweep.beside import neighbour_cost
from sweep.config import Overrides, load_text
from sweep.errors import ConfigError
from sweep.model import Basis, BlockResult, ClientHealth, RequestRecord, Role, Stage, Verdict

from .conftest import SPACE  # type: ignore[import-not-found]  # pytest's importlib mode

PINS = ("server.args.max-total-tokens=4096", "server.args.sleep-on-idle=true")
ONE = ("space.num_steps=[3]", "space.num_draft_tokens=[4]", "workload.repeats=1")


def together(launches) -> set[tuple[int | None, int | None]]:
    """Pairs of trials (None: a baseline) whose servers were ready at the same time."""
    out = set()
    for number, one in enumerate(launches):
        for other in launches[number + 1 :]:
            if max(one.ready_at, other.ready_at) < min(one.ended_at, other.ended_at):
                out.add((one.trial, other.trial))
    return out


def test_pins_that_allow_it_make_pairs_of_living_servers(lab):
    study = lab.run(*ONE, *PINS, "workload.repeats=2")
    launches = lab.store.launches(study.id)
    assert [x.trial for x in launches] == [None, None, None, 0]  # the check of the neighbour, then the pair
    assert together(launches) == {(None, None), (None, 0)}
    assert all(x.stop_report["clean"] for x in launches)
    (checked,) = lab.kinds("neighbour")
    assert checked["accepted"]
    assert checked["pairs"] == 8
    (row,) = lab.best(study)["best"]
    assert row["gain"]["basis"] == "resident"
    assert row["gain"]["estimate"] > 0
    # the blocks measured again for the check are in no row
    assert {len(x.blocks) for x in lab.store.measured_launches(study.id)} == {2}
    of_pair = [x for x in lab.store.measured_launches(study.id) if x.pair is not None]
    turns = sorted((block.started_at, x.role is Role.BASELINE) for x in of_pair for block in x.blocks)
    assert [base for _, base in turns] == [True, False, False, True]


def test_a_neighbour_that_costs_something_ends_it(lab):
    study = lab.run(*ONE, *PINS, profile={"effects": {"neighbour": 1.3}})
    (why,) = lab.kinds("pairing")
    assert "slower beside an idle server" in why["why"]
    launches = lab.store.launches(study.id)
    assert together(launches) == {(None, None)}
    (row,) = lab.best(study)["best"]
    assert row["gain"]["basis"] == "bracketed"


@pytest.mark.parametrize(
    ("mib", "drafter_gb", "words", "order"),
    [
        (3400, 0.1, "MiB are needed", [None, 0, None]),
        pytest.param(4096, 0.1, "a second server did not run beside", [None, 0, None], marks=pytest.mark.slow),
        pytest.param(9000, 5.0, "the GPUs do not hold both", [None, None, None, 0, None], marks=pytest.mark.slow),
    ],
)
def test_memory_for_one_server_only_ends_it_and_the_trial_is_launched_alone(lab, mib, drafter_gb, words, order):
    small = {"gpu": {"name": "Small", "memory_total_mib": mib, "driver_version": "580.1", "count": 1}}
    small["draft"] = {"weights_gb": drafter_gb, "kv_bytes_per_token": 1024}
    study = lab.run(*ONE, *PINS, profile=small)
    (why,) = lab.kinds("pairing")
    assert words in why["why"]
    launches = [x for x in lab.store.launches(study.id) if x.verdict is Verdict.COMPLETE]
    assert (None, 0) not in together(launches)
    assert [x.trial for x in launches] == order
    (row,) = lab.best(study)["best"]
    assert row["gain"]["basis"] == "bracketed"


# ---------------------------------------------------------------------------------------------- the choice


def spec(*sets: str):
    return load_text(SPACE.replace("BASE", "host"), Overrides(sets=sets), source="space.yaml")


@pytest.mark.parametrize(
    ("sets", "mode", "words"),
    [
        ((), Basis.BRACKETED, "max-total-tokens is not pinned"),
        (PINS[:1], Basis.BRACKETED, "sleep-on-idle is not pinned"),
        (PINS, Basis.RESIDENT, "the pins allow it"),
        ((*PINS, "measurement.pairing=resident"), Basis.RESIDENT, "asked for"),
        ((*PINS, "measurement.pairing=bracketed"), Basis.BRACKETED, "asked for"),
        ((*PINS, "measurement.pairing=alternate"), Basis.ALTERNATE, "B C C B"),
        ((PINS[1], "space.args.max-total-tokens=[4096, 8192]"), Basis.BRACKETED, "max-total-tokens is not pinned"),
    ],
)
def test_the_mode_follows_the_pins_and_says_why(sets, mode, words):
    chosen = pairing.choose(spec(*sets))
    assert chosen.mode is mode
    assert words in chosen.why


def test_resident_without_the_pins_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"measurement.pairing: resident needs both servers' memory to be pinned"):
        spec("measurement.pairing=resident")


# ---------------------------------------------------------------------------------------------- the judgement


def blocks(seconds: list[float], concurrency: int = 1) -> list[BlockResult]:
    rows = tuple(RequestRecord(i, f"q{i}", "code", 0.0, 0.1, end, output_tokens=100) for i, end in enumerate(seconds))
    block = BlockResult(Stage.SEARCH, concurrency, 0, "p", 0.0, sum(seconds), rows, ClientHealth(0.0, 0.0, 0.0, 0))
    return [block, replace(block, round=1)]


def test_a_neighbour_is_judged_by_pairs_of_prompts():
    alone = blocks([1.0, 2.0, 3.0, 4.0])
    same = neighbour_cost(alone, blocks([1.001, 1.999, 3.001, 3.999]))
    assert (same.pairs, same.too_much) == (8, False)
    slower = neighbour_cost(alone, blocks([1.05, 2.1, 3.15, 4.2]))
    assert slower.mean == pytest.approx(0.0488, abs=1e-3)
    assert slower.too_much
    scattered = neighbour_cost(alone, blocks([1.3, 1.7, 3.9, 3.3]))
    assert not scattered.too_much  # what it shows is within its own error
    assert neighbour_cost(alone, blocks([1.0], concurrency=4)).too_much  # nothing to compare is no licence
