"""Every error a user can meet, and the exit code it ends with.

::

    SweepError                 exit 1   something went wrong; the message says what, where and what to do
      UsageError               exit 2   the command line asks for something impossible
        ConfigError            exit 2   the YAML is wrong: file, line, key, nearest valid name
      StoreError               exit 3   the database cannot be used (locked, read-only, newer schema, disk full)
      StudyExistsError         exit 4   `start` met a study of that name; `resume` carries it on
      StudyNotFoundError       exit 5   no study of that name; near names are listed
      BusyError                exit 6   another controller holds the study or the host
      HostError                exit 7   no host can be used (unreachable, key refused, no GPU, no python, no Ray there)

A trial's own failure is not an error of ours: it is a ``Diagnosis`` value (``sweep.model``).

Errors cross the Ray border as values, never as exceptions; constructors therefore take one message only.
130 is the exit code after Ctrl-C and `sweep stop`; a host on which not everything is known to have ended is named.
"""

from __future__ import annotations


class SweepError(Exception):
    """Base of all errors that end in a message for the user rather than a traceback."""

    exit_code = 1


class UsageError(SweepError):
    """The command line asks for something impossible."""

    exit_code = 2


class ConfigError(UsageError):
    """The search-space YAML is wrong; the message carries file, line, key and the nearest valid name."""


class StoreError(SweepError):
    """The database cannot be used: locked, read-only, not a database, of a newer schema, disk full."""

    exit_code = 3


class StudyExistsError(SweepError):
    """`start` met a study of that name."""

    exit_code = 4


class StudyNotFoundError(SweepError):
    """No study of that name is in the database."""

    exit_code = 5


class BusyError(SweepError):
    """Another controller holds the study or the host; the message says which one."""

    exit_code = 6


class HostError(SweepError):
    """A GPU host cannot be used; the message names host, cause and the command that would mend it."""

    exit_code = 7
