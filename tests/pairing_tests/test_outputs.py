"""Same output: near-ties are no difference, unlikely tokens are; judged against what the baseline shows of itself."""

from __future__ import annotations

import json

import pytest

from launchers.engines.sglang import SglangEngine
from sweep.model import BlockResult, ClientHealth, RequestRecord, Stage
from sweep.outputs import NEAR_TIE_NAT, OutputCheck, parting
from sweep.reports import TokenAnswer

HEALTH = ClientHealth(0.0, 0.0, 0.0, 0)


def block(texts: dict[str, tuple[int, ...]], *, concurrency: int = 1, prompts: str = "p") -> BlockResult:
    rows = tuple(
        RequestRecord(i, name, "code", 0.0, 0.1, 1.0, output_tokens=len(ids), output_ids=ids)
        for i, (name, ids) in enumerate(texts.items())
    )
    return BlockResult(Stage.SEARCH, concurrency, 0, prompts, 0.0, 1.0, rows, HEALTH)


BASE = {f"q{i}": (1, 2, 3, 4) for i in range(10)}


def judged(other: dict[str, tuple[int, ...]], logprobs: dict[int, float], base_again=BASE):
    """A candidate with the texts ``other`` between two baselines, of which the second gives ``logprobs``."""
    check = OutputCheck()
    first, last = [block(BASE)], [block(base_again)]
    assert check.questions("h", first) == []
    assert check.answered("h", first, []) == []
    check.candidate("h", 7, [block(other)])
    asked = check.questions("h", last)
    found = check.answered("h", last, [TokenAnswer(question, logprobs) for question in asked])
    assert check.questions("h", [block(base_again)]) == []  # nothing is asked twice
    return asked, found


def test_where_texts_part():
    assert parting((1, 2), (1, 2)) is None
    assert parting((1, 2, 3), (1, 9, 3)) == 1
    assert parting((1, 2), (1, 2, 3)) == 2


def test_equal_texts_need_no_question():
    asked, (found,) = judged(BASE, {})
    assert asked == []
    assert not found.differs
    assert found.detail["same"] == 10


def test_a_near_tie_is_no_difference():
    asked, (found,) = judged(BASE | {"q3": (1, 2, 9, 9)}, {3: -0.70, 9: -0.70 - NEAR_TIE_NAT})
    (question,) = asked
    assert (question.prompt_id, question.prefix, question.candidates) == ("q3", (1, 2), (3, 9))
    assert not found.differs
    assert (found.detail["near_ties"], found.detail["differences"]) == (1, 0)
    assert found.detail["largest_near_tie_nat"] == pytest.approx(NEAR_TIE_NAT)


@pytest.mark.parametrize("logprobs", [{3: -0.1, 9: -0.1 - NEAR_TIE_NAT - 0.01}, {3: -0.1, 5: -3.0}])
def test_an_unlikely_token_is_a_difference(logprobs):
    _, (found,) = judged(BASE | {"q3": (1, 2, 9, 9)}, logprobs)
    assert found.differs  # 1 of 10 is above the 5 % allowed
    assert found.trial == 7
    assert "prompt q3, token 2" in found.evidence
    assert found.detail["share"] == pytest.approx(0.1)


def test_what_the_baseline_does_to_itself_is_allowed():
    again = BASE | {"q1": (1, 2, 8, 4), "q2": (1, 2, 8, 4)}
    _, (found,) = judged(BASE | {"q3": (1, 2, 9, 9)}, {3: -0.1}, base_again=again)
    assert found.detail["baseline_share"] == pytest.approx(0.2)
    assert not found.differs


def test_no_answer_and_an_early_end_stay_unclear():
    _, (found,) = judged(BASE | {"q3": (1, 2, 9, 9), "q4": (1, 2)}, {})
    assert found.detail["unclear"] == 2
    assert not found.differs


def test_other_prompts_hosts_and_loads_are_not_compared():
    check = OutputCheck()
    check.answered("h", [block(BASE)], [])
    for host, other in (
        ("h", block({"q3": (9,)}, prompts="other")),
        ("elsewhere", block({"q3": (9,)})),
        ("h", block({"q3": (9,)}, concurrency=4)),
    ):
        check.candidate(host, 1, [other])
    assert check.questions("h", [block(BASE)]) == []


def test_what_waited_when_a_run_was_cut_short_is_asked_by_the_next() -> None:
    check = OutputCheck()
    events: list[tuple[str, str, dict[str, object]]] = []
    check.answered("h", [block(BASE)], [])
    for trial, token in ((1, 8), (2, 9)):
        waiting = check.candidate("h", trial, [block(BASE | {"q3": (1, 2, token, 9)})])
        assert waiting is not None
        events.append(("outputs_open", "h", json.loads(json.dumps(waiting))))
        if trial == 1:
            asked = check.questions("h", [block(BASE)])
            (found,) = check.answered("h", [block(BASE)], [TokenAnswer(question, {3: -0.1}) for question in asked])
            events.append(("outputs", "h", json.loads(json.dumps(found.detail))))

    again = OutputCheck.resumed(events)
    assert again.questions("elsewhere", [block(BASE)]) == []
    (question,) = again.questions("h", [block(BASE)])  # of trial 2 alone; no baseline's text is needed for it
    assert (question.prompt_id, question.prefix, question.candidates) == ("q3", (1, 2), (3, 9))
    (late,) = again.answered("h", [block(BASE)], [TokenAnswer(question, {3: -0.1, 9: -0.2})])
    assert (late.trial, late.differs, late.detail["near_ties"], late.detail["same"]) == (2, False, 1, 9)
    # what the baseline showed of itself is remembered: ten prompts before the end of the first run
    assert (found.detail["baseline_prompts"], late.detail["baseline_prompts"]) == (10, 10)


def test_what_a_stopped_baseline_was_not_asked_waits_for_the_next() -> None:
    check = OutputCheck()
    check.answered("h", [block(BASE)], [])
    for trial, prompt in ((1, "q3"), (2, "q4")):
        check.candidate("h", trial, [block(BASE | {prompt: (1, 2, 9, 9)})])
    first, second = check.questions("h", [block(BASE)])
    (found,) = check.answered("h", [block(BASE)], [TokenAnswer(first, {3: -0.1, 9: -0.2})])
    assert (found.trial, found.detail["unclear"]) == (1, 0)
    assert check.questions("h", [block(BASE)]) == [second]
    (found,) = check.answered("h", [block(BASE)], [TokenAnswer(second, {})])  # asked, and the server did not say
    assert (found.trial, found.detail["unclear"]) == (2, 1)
    assert check.questions("h", [block(BASE)]) == []


def test_without_a_baseline_s_text_there_is_nothing_to_keep() -> None:
    assert OutputCheck().candidate("h", 1, [block(BASE)]) is None


# ---------------------------------------------------------------------------------------------- the question itself


def test_the_likeliest_tokens_are_read_from_the_server_s_answer():
    asked = []

    def http(method, path, body=None):
        asked.append((method, path, body))
        top = [[-0.72, 31, None], [-0.74, 17, "x"]]
        return 200, json.dumps({"text": "", "meta_info": {"output_top_logprobs": [top]}}).encode()

    assert SglangEngine().next_tokens(http, (5, 6), 2) == {31: -0.72, 17: -0.74}
    ((method, path, body),) = asked
    assert (method, path) == ("POST", "/generate")
    assert body["input_ids"] == [5, 6]
    assert body["sampling_params"]["max_new_tokens"] == 1
    assert body["top_logprobs_num"] == 2


@pytest.mark.parametrize("answer", [b"no", b"{}", b'{"meta_info": {"output_top_logprobs": null}}', b"[]"])
def test_an_answer_without_log_probabilities_is_refused_in_words(answer):
    with pytest.raises(RuntimeError, match="/generate answered 400 without log-probabilities"):
        SglangEngine().next_tokens(lambda *a: (400, answer), (5,), 2)
