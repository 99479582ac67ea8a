"""docs/reference/verdicts.md: how a trial ends, what is remarkable about it, and which failures are recognised."""

from __future__ import annotations

from collections.abc import Callable

from launchers.diagnosis_rules import RULES
from sweep.model import Comparison, Flag, Phase, Verdict

INTRO = """# Verdicts, flags, words

`sweep show TRIAL` gives the verdict with phase, reason, the log line as evidence, and advice. How the gates behind the
flags decide: [measurement.md](../measurement.md#validity-gates).
"""
_VERDICTS = {
    Verdict.COMPLETE: "measured; the only one with values",
    Verdict.LAUNCH_OOM: "the GPU's memory ran out while starting or serving",
    Verdict.LAUNCH_CONFIG_ERROR: "the server refuses the configuration, or runs another one than asked",
    Verdict.LAUNCH_TIMEOUT: "not ready within `launch_timeout_s`, though it still did something",
    Verdict.HUNG: "no token and no log line for `stall_timeout_s`",
    Verdict.CRASHED: "ended by itself for another reason",
    Verdict.DRAFTER_INEFFECTIVE: "hardly a draft is accepted: the probe right after start found it",
    Verdict.MEASUREMENT_INVALID: "served, but what was measured may not be used",
    Verdict.INFRA_ERROR: "host, network or disk; the configuration is not at fault",
    Verdict.CANCELLED: "stopped by you",
}
_FLAGS = {
    Flag.COERCED: "the server runs a known rewrite of what was asked; results belong to what it runs",
    Flag.SCREENED_OUT: "not measured to the end: it could not win any more on the loads it ran; never on the front",
    Flag.OUTPUT_DIFFERS: "answers leave the baseline's where the target itself sees no near-tie",
    Flag.CUDA_GRAPH_OFF: "decoding ran without CUDA graphs though they were asked for",
    Flag.RETRACTIONS: "requests were thrown out for lack of KV memory and started again",
    Flag.CACHED_TOKENS: "more of the prompts was found in the cache than for the baseline",
    Flag.ABOVE_ACCEPT_LENGTH: "gains more than its accept length allows: the baseline was too slow",
    Flag.LENGTHS_DIFFER: "answers are longer or shorter than the baseline's",
    Flag.CLIENT_LIMITED: "the client or the path to the server was the limit",
    Flag.NOT_COMPARABLE: "the baselines around it disagree; it is measured again",
    Flag.THROTTLED: "the GPU was slowed down by heat or power, unlike the baseline's",
    Flag.NEIGHBOURS: "other slots of its host had a server meanwhile",
    Flag.SIMULATED: "no GPU was measured",
    Flag.FORCED_ACCEPT_LENGTH: "the accept length was forced; gains are not the drafter's",
}
_COMPARISONS = {
    Comparison.FASTER: "than the reference, beyond noise and beyond 1 %",
    Comparison.SLOWER: "likewise",
    Comparison.TIE: "the measurement cannot tell them apart, or the difference is below 1 %",
    Comparison.NOT_COMPARABLE: "nothing may be said",
}


def undocumented() -> list[str]:
    """Verdicts, flags and comparisons without words."""
    tables = ((Verdict, _VERDICTS), (Flag, _FLAGS), (Comparison, _COMPARISONS))
    return [f"{kind.__name__}.{member.name}" for kind, words in tables for member in kind if member not in words]


def page(cell: Callable[[object], str]) -> str:
    """The page, without its first line."""
    out = [
        INTRO,
        "## Verdicts",
        "",
        "| verdict | meaning | told to the sampler as | tried again |",
        "|---|---|---|---|",
    ]
    for verdict in Verdict:
        told = "violated constraint" if verdict.infeasible else "failed" if verdict.requeue else "values"
        again = (
            "yes, up to `max_attempts`"
            if verdict.requeue
            else ""
            if verdict is Verdict.COMPLETE
            else "by its reason, see below"
        )
        out.append(f"| `{verdict}` | {_VERDICTS[verdict]} | {told} | {again} |")
    out += ["", f"Phases, in order: {', '.join(f'`{phase}`' for phase in Phase)}.", ""]
    out += ["## Flags", "", "| flag | meaning |", "|---|---|", *(f"| `{flag}` | {_FLAGS[flag]} |" for flag in Flag)]
    out += ["", "## Comparisons", "", "| word | meaning |", "|---|---|"]
    out += [f"| `{word}` | {_COMPARISONS[word]} |" for word in Comparison]
    out += ["", "## Failures that are recognised", ""]
    out += ["By the server's log, the first that fits. Advice in *italics* depends on the log line.", ""]
    out += ["| reason | verdict | again | advice |", "|---|---|---|---|"]
    seen: set[tuple[str, str]] = set()
    for rule in RULES:
        advice = rule.advice if isinstance(rule.advice, str) else "*of the line and the configuration*"
        if (rule.reason, advice) in seen:
            continue
        seen.add((rule.reason, advice))
        out.append(f"| `{rule.reason}` | `{rule.verdict}` | {rule.retry} | {cell(advice)} |")
    return "\n".join(out) + "\n"
