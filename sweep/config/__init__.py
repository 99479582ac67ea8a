"""The search-space YAML: reading, checking, overriding and extending a study's description."""

from sweep.config.extend import SpecDiff, diff
from sweep.config.loader import find, load_space, load_stored, load_text, shipped
from sweep.config.models import StudySpec
from sweep.config.overrides import Overrides
from sweep.config.places import Host
from sweep.config.secret import plain_env, secret_env
from sweep.config.simulate import simulated
from sweep.config.slots import without_slots

__all__ = [
    "Host",
    "Overrides",
    "SpecDiff",
    "StudySpec",
    "diff",
    "find",
    "load_space",
    "load_stored",
    "load_text",
    "plain_env",
    "secret_env",
    "shipped",
    "simulated",
    "without_slots",
]
