"""The report as Markdown, of a size that fits a pull request: the verdict, the best arms, what failed, provenance."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweep.report.facts import Facts
from sweep.report.page import number, utc
from sweep.report.provenance import provenance
from sweep.sentences import UNBROKEN, interval, tie_because

ARMS = 8
FAILURES = 5
EVIDENCE = 160  # characters of the log line
_SPECIAL = re.compile(r"([\\`*_\[\]#|~>$])")
_KEPT = ("engine", "engine version", "target model", "draft models", "hosts", "seed", "prompts hash", "specsweep")


def render(facts: Facts) -> str:
    """Markdown text; what came from outside is escaped so that it stays text."""
    study = facts.study
    lines = [f"## Speculative decoding: {escape(study.name)}", ""]
    if study.simulated:
        lines += [f"> **SIMULATED** (profile {escape(study.profile or '')}): no GPU was measured.", ""]
    lines += [line for text in facts.banner for line in (f"> **{escape(text)}**", "")]
    first, *rest = (unbroken(escape(text)) for text in facts.verdict)
    lines += [f"**{first}**", *rest, ""]
    if facts.ranking:
        lines += [*_ranking(facts), ""]
    lines += [f"- {unbroken(escape(line))}" for line in facts.notes]
    lines += [f"- {line}" for line in _differing(facts)]
    crossing = _crossing(facts)
    lines += [f"- {crossing}"] if crossing else []
    lines += [
        f"- {facts.gpu_hours()['total']:.2f} GPU-hours, {facts.status['launches']['total']} launches "
        f"({facts.status['launches']['search']} of the search)",
        "",
    ]
    failures = facts.failures()
    if failures:
        lines += ["| trial | arm | ended as | evidence |", "|---:|---|---|---|"]
        lines += [
            f"| {t.number} | {escape(t.config.label())} | {escape(t.verdict or '')} | "
            f"{escape((t.evidence or '')[:EVIDENCE])} |"
            for t in failures[:FAILURES]
        ]
        if len(failures) > FAILURES:
            lines.append(f"\n{len(failures) - FAILURES} more failed.")
        lines.append("")
    if facts.command:
        fence = "`" * (1 + max((len(run) for run in re.findall("`+", facts.command)), default=2))
        lines += ["<details><summary>Serve the leading arm</summary>", ""]
        lines += [f"{fence}sh", facts.command, fence, "", "</details>", ""]
    found = provenance(facts)
    lines += ["<details><summary>Provenance</summary>", ""]
    lines += [f"- {key}: {escape(found[key])}" for key in _KEPT if key in found]
    lines += [f"- measured {utc(study.created_at)}", "", "</details>"]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text that Markdown and the HTML in it leave alone."""
    flat = " ".join(text.split())
    return _SPECIAL.sub(r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;"))


def unbroken(text: str) -> str:
    """No line ends inside an interval or begins with the % of its number, wherever the text is shown."""

    def whole(match: re.Match[str]) -> str:
        joined = re.sub(r"(?<=[\d%])-", "\N{NON-BREAKING HYPHEN}", match[0])
        return joined.replace(" ", "\N{NO-BREAK SPACE}")

    return UNBROKEN.sub(whole, text)


def _ranking(facts: Facts) -> Sequence[str]:
    baseline = facts.best["baseline"]["by_objective"].get(facts.objective.key)
    out = [
        f"| rank | arm | {escape(facts.objective.key)} ({facts.unit}) | gain (95 %) | result | accept length "
        "| break-even | stage |",
        "|---:|---|---:|---:|---|---:|---:|---|",
    ]
    for row in facts.ranking[:ARMS]:
        gain = row["gain"]
        cells = [
            str(row["rank"]),
            escape(row["label"]),
            number(row["value"], 1),
            unbroken(interval(gain)) if gain else "–",
            row["comparison"].replace("_", " "),
            number(row["accept_length"]),
            number(row["break_even_accept_length"]),
            gain["stage"] if gain else "–",
        ]
        out.append(f"| {' | '.join(cells)} |")
    if baseline is not None:
        out.append(f"| | no speculation | {number(baseline, 1)} | | | | | |")
    ties = [(row["label"], row["tie_because"]) for row in facts.ranking[:ARMS] if row["tie_because"] is not None]
    out += (
        ["", *(f"- {escape(label)} is a tie {unbroken(escape(tie_because(why)))}." for label, why in ties)]
        if ties
        else []
    )
    return out


def _differing(facts: Facts) -> list[str]:
    """The arms whose greedy answers part from the baseline's where the target leaves no doubt."""
    labels = {trial.number: trial.config.label() for trial in facts.trials}
    return [
        f"Output differs: {escape(labels[found['trial']])} in {found['differences']} of {found['prompts']} answers."
        for found in facts.outputs
        if found["differs"]
    ]


def _crossing(facts: Facts) -> str | None:
    leader = facts.leader["trial"] if facts.leader else None
    found = next((c for c in facts.analysis.get("crossover", []) if c["trial"] == leader), None)
    return None if found is None else f"The leading arm {escape(found['why'])}."
