"""From a server's last words to a diagnosis: an ordered table of anchored rules, and what remains.

The table (``launchers.diagnosis_rules``) is data; this module matches it. The first rule that matches wins, whatever
its place in the log: causes stand before consequences. What no rule knows is ``crashed``, with its last lines, never a
guess. Evidence and last lines are stored, so credentials in them are masked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from launchers.diagnosis_rule import Found, Rule
from launchers.diagnosis_rules import RULES
from launchers.logtext import LONGEST, messages
from launchers.redact import Redactor
from sweep.model import ArmConfig, Diagnosis, GpuProcess, Phase, Retry, Verdict

CONTEXT_LINES = 60  # frames of one traceback
TAIL_LINES = 40
_LATER = (Phase.READY, Phase.PROBE, Phase.BENCHMARK, Phase.STOP)


def diagnose(
    log_lines: Iterable[str],
    *,
    exit_code: int | None,
    phase: Phase,
    timed_out: bool,
    arm: ArmConfig,
) -> Diagnosis:
    """Why a server died, hung or never became ready. Pure.

    ``exit_code`` as Popen gives it (-9: killed by SIGKILL), None where it runs or nobody knows. It is the last thing
    looked at: SGLang ends every failed launch, and every clean stop, by killing itself. ``timed_out``: a deadline of
    ours passed while it ran.
    """
    lines = [line.rstrip("\r\n") for line in log_lines]
    said = [text for line in lines for text in messages(line)]
    hangs = timed_out and exit_code is None
    redact = Redactor().text  # server_args= repeats the API key
    tail = tuple(redact(line[: 4 * LONGEST]) for line in [line for line in lines if line.strip()][-TAIL_LINES:])
    for rule in RULES:
        if (rule.running is not None and rule.running != hangs) or (
            rule.ready is not None and rule.ready != (phase in _LATER)
        ):
            continue
        if (found := _find(rule, said, arm)) is not None:
            return _made(rule, found, phase, tail)
    return _unknown(said, exit_code=exit_code, phase=phase, hangs=hangs, tail=tail)


def with_foreign_processes(diagnosis: Diagnosis, foreign: Sequence[GpuProcess]) -> Diagnosis:
    """An out-of-memory on a GPU that others use is not the arm's fault: they are named, and nothing is pruned."""
    if diagnosis.verdict is not Verdict.LAUNCH_OOM or not foreign:
        return diagnosis
    names = ", ".join(f"pid {p.pid} of {p.user or 'unknown user'} ({p.memory_mib} MiB)" for p in foreign)
    return replace(
        diagnosis,
        verdict=Verdict.INFRA_ERROR,
        reason="gpu_dirty",
        advice=f"The GPU was also used by {names}. The configuration is not at fault; end those processes (we never "
        "do) or give another GPU, and it is tried again.",
        retry=Retry.LATER,
        dominates=(),
    )


def _find(rule: Rule, said: Sequence[str], arm: ArmConfig) -> Found | None:
    for i, text in enumerate(said):
        match = rule.pattern.match(text)
        if match is None:
            continue
        before = said[max(0, i - CONTEXT_LINES) : i]
        if rule.context is not None and not any(rule.context.search(line) for line in before):
            continue
        found = Found(match, arm, before)
        if rule.when is None or rule.when(found):
            return found
    return None


def _made(rule: Rule, found: Found, phase: Phase, tail: tuple[str, ...]) -> Diagnosis:
    evidence = found.match.string
    if rule.evidence is not None:
        evidence = next((line for line in reversed(found.before) if rule.evidence.search(line)), evidence)
    if phase is Phase.START and rule.verdict is Verdict.LAUNCH_CONFIG_ERROR:
        phase = Phase.CONFIG  # arguments are refused before the line that reports them
    return Diagnosis(
        verdict=rule.verdict,
        phase=rule.phase or phase,
        reason=rule.reason,
        evidence=Redactor().text(evidence.strip()[:LONGEST]),
        advice=rule.advice(found) if callable(rule.advice) else rule.advice,
        retry=rule.retry,
        dominates=rule.dominates,
        log_tail=tail,
    )


_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Timeout)\b|Exception)(?::|$)")
_NOISE = re.compile(r"kill_process_tree called|\S+\.py:\d+: \w*Warning: |\s*warnings\.warn|\[rank\d+\]:\[W|\s*$")


def _unknown(
    said: Sequence[str], *, exit_code: int | None, phase: Phase, hangs: bool, tail: tuple[str, ...]
) -> Diagnosis:
    """What no rule knows. The evidence is the last exception where there is one, else the last line."""
    last = next((line.strip() for line in reversed(said) if not _NOISE.match(line)), "")
    exception = next((line.strip() for line in reversed(said) if _EXCEPTION.match(line)), None)
    evidence = Redactor().text((exception or last or "(the log is empty)")[:LONGEST])
    if hangs and phase in _LATER:
        return Diagnosis(
            Verdict.HUNG, phase, "no_tokens", evidence,
            "The server runs and answers, but no token came. It is tried once more, on a fresh port; if it hangs "
            "again, leave this configuration out.",
            Retry.ONCE, log_tail=tail,
        )  # fmt: skip
    if hangs:
        return Diagnosis(
            Verdict.LAUNCH_TIMEOUT, phase, "no_progress", evidence,
            f"The log stood still in phase {phase.value} for longer than the limit. If this step is only slow (a large "
            "model over a network disk), raise measurement.stall_timeout_s.",
            Retry.ONCE, log_tail=tail,
        )  # fmt: skip
    if exit_code in (126, 127):
        return Diagnosis(
            Verdict.LAUNCH_CONFIG_ERROR, Phase.START, "environment", evidence,
            f"Exit status {exit_code}: the command could not be run on the host. Give the absolute path of the python "
            "that has SGLang as the host's `python`.",
            log_tail=tail,
        )  # fmt: skip
    if not said and exit_code is None:
        return Diagnosis(
            Verdict.INFRA_ERROR, Phase.START, "never_started", evidence,
            "Nothing was started on the host: no log, no exit status. It is tried again.", Retry.LATER, log_tail=tail,
        )  # fmt: skip
    if exit_code in (-15, 143, -1, 129, -2, 130) and exception is None:
        return Diagnosis(
            Verdict.INFRA_ERROR, phase, "terminated_from_outside", evidence,
            f"The server was ended by a signal from outside (exit status {exit_code}), not by an error of its own.",
            Retry.LATER, log_tail=tail,
        )  # fmt: skip
    silent = exit_code in (-9, 137) and exception is None
    return Diagnosis(
        Verdict.CRASHED, phase, "killed_silently" if silent else "unknown", evidence,
        "SIGKILL without a word in the log: the kernel's out-of-memory killer or somebody's kill -9. "
        "`dmesg -T | grep -i oom` on the host tells which."
        if silent
        else f"An end we do not know (exit status {'unknown' if exit_code is None else exit_code}); "
        "the last lines of the log are kept with the trial.",
        Retry.ONCE, log_tail=tail,
    )  # fmt: skip
