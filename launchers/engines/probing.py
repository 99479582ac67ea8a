"""Does the drafter draft, and if not, what is the likeliest cause? Checked right after ready."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launchers.logtext import messages
from sweep.model import ArmConfig, Diagnosis, Phase, Retry, Verdict

# Below this a drafter is useless: reports of 1.00 to 1.04 were all failures of the set-up, and a served EAGLE3 head
# with the wrong algorithm gave 1.005 to 1.036. Any verify step costs far more than the 5 % it would return.
INEFFECTIVE_BELOW = 1.05
# The same where the log names the wrong kind of head: a real one, served as EAGLE, gave 1.05 over its first 60 steps
# and 1.009 over the next 5,516. A drafter worth keeping gives more than this.
MISMATCHED_BELOW = 1.15
# Verify steps needed to say so: a drafter worth keeping (1.15) shows below 1.05 in 50 steps in 2 of 100 cases.
ENOUGH_STEPS = 50


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a config.json says. Sizes in elements, positions in tokens; None where it does not say."""

    architecture: str
    vocab_size: int | None = None
    max_positions: int | None = None

    @property
    def eagle3(self) -> bool:
        return "eagle3" in self.architecture.lower()


def model_facts(config: Mapping[str, Any]) -> ModelFacts:
    """From a config.json, of a target or a drafter; a multimodal model's text part counts for the sizes."""
    text = config.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, Mapping) else {}

    def number(*names: str) -> int | None:
        for name in names:
            for source in (config, inner):
                value = source.get(name)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    names = config.get("architectures") or inner.get("architectures") or [""]
    return ModelFacts(
        architecture=str(names[0]) if isinstance(names, Sequence) and names else "",
        vocab_size=number("vocab_size"),
        max_positions=number("max_position_embeddings"),
    )


_LOADED = re.compile(r"Load weight end\..*?\btype=([\w.]+)")


def facts_from_log(log_lines: Iterable[str]) -> tuple[ModelFacts | None, ModelFacts | None]:
    """(target, drafter) as SGLang loaded them: it names the class of each set of weights, the target's first."""
    loaded = [m[1] for line in log_lines for text in messages(line) if (m := _LOADED.match(text))]
    target = ModelFacts(loaded[0]) if loaded else None
    drafter = ModelFacts(loaded[-1]) if len(loaded) > 1 else None
    return target, drafter


def with_config(seen: ModelFacts | None, config: Mapping[str, Any] | None) -> ModelFacts | None:
    """What was loaded, by the log's word where it has one, with the sizes that its config.json gives."""
    if config is None:
        return seen
    facts = model_facts(config)
    return facts if seen is None else replace(facts, architecture=seen.architecture)


def probe_diagnosis(
    accept_length: float | None,
    verify_steps: int,
    arm: ArmConfig,
    drafter: ModelFacts | None = None,
    target: ModelFacts | None = None,
) -> Diagnosis | None:
    """``drafter_ineffective`` where :data:`ENOUGH_STEPS` verify steps gave less than :data:`INEFFECTIVE_BELOW`
    tokens each (:data:`MISMATCHED_BELOW` for an EAGLE3 head served as EAGLE); None where the drafter works, or too few
    steps were seen to say.

    ``accept_length`` = 1 + correct drafts ÷ verify steps; None means that the server gave no counters, which is not
    an accept length of 1: then nothing can be said about the drafter, and the launch is not measured.
    """
    if not arm.speculative:
        return None
    if accept_length is None or (verify_steps == 0 and accept_length <= 1.0):
        return Diagnosis(
            Verdict.MEASUREMENT_INVALID, Phase.PROBE, "no_accept_counters",
            "the answers carried no spec_verify_ct",
            "Speculation was asked for, but the server counts no verify step: it was switched off, or this endpoint "
            "does not report it. Look for a warning about speculation in the log.",
            Retry.ONCE,
        )  # fmt: skip
    algorithm = (arm.algorithm or "").upper()
    mismatched = drafter is not None and drafter.eagle3 and algorithm in ("EAGLE", "NEXTN")
    limit = MISMATCHED_BELOW if mismatched else INEFFECTIVE_BELOW
    if verify_steps < ENOUGH_STEPS or accept_length >= limit:
        return None
    evidence = (
        f"accept length {accept_length:.3f} over {verify_steps} verify steps "
        f"(below {limit}; {(arm.num_steps or 0) + 1 if arm.num_steps else 'num_steps + 1'} is the most)"
    )
    if mismatched and drafter is not None:
        return _mismatch(drafter, algorithm, Phase.PROBE, evidence)
    return Diagnosis(
        Verdict.DRAFTER_INEFFECTIVE,
        Phase.PROBE,
        _cause(arm, drafter, target)[0],
        evidence,
        _cause(arm, drafter, target)[1],
    )


def _cause(arm: ArmConfig, drafter: ModelFacts | None, target: ModelFacts | None) -> tuple[str, str]:
    """(reason, advice): the likeliest cause that the facts allow; all of them where they say nothing."""
    algorithm = (arm.algorithm or "").upper()
    if algorithm == "NGRAM":
        return "no_repetition", "n-gram drafts come from repeated text, and these prompts and answers hold none."
    if drafter and target and drafter.architecture == target.architecture and algorithm != "STANDALONE":
        return (
            "target_as_drafter",
            f"The target ({target.architecture}) was loaded as its own drafter. Give the drafter's own path.",
        )
    if drafter and target and _vocabularies_differ(drafter, target):
        return (
            "draft_target_mismatch",
            f"The vocabularies differ (drafter {drafter.vocab_size}, target {target.vocab_size}): its tokens mean "
            "others. Take the head trained for this target.",
        )
    window = drafter.max_positions if drafter else None
    likely = "the drafter was trained for another target or another chat template"
    if window is not None and target and target.max_positions and window < target.max_positions:
        likely += f", or the requests are longer than its window of {window} tokens"
    return (
        "never_accepted",
        f"The target accepts next to nothing of what is drafted. Likely: {likely}; or the head is of another kind than "
        f"{algorithm} (an EAGLE3 head needs EAGLE3: its config.json names the architecture).",
    )


def _vocabularies_differ(drafter: ModelFacts, target: ModelFacts | None) -> bool:
    sizes = {facts.vocab_size for facts in (drafter, target) if facts and facts.vocab_size}
    return len(sizes) > 1


def _mismatch(drafter: ModelFacts, algorithm: str, phase: Phase, evidence: str) -> Diagnosis:
    return Diagnosis(
        Verdict.DRAFTER_INEFFECTIVE,
        phase,
        "algorithm_mismatch",
        evidence,
        f"The drafter is an EAGLE3 head ({drafter.architecture}) but was served as {algorithm}: use EAGLE3. "
        "SGLang gives no warning, feeds it one hidden state instead of three, and no draft is ever accepted.",
    )
