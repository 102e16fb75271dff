"""What a caller may do with a task. Source: contract, sections 3 and 7; security checklist T4."""

from enum import StrEnum


class Action(StrEnum):
    """What is done with a task that exists."""

    READ = "read"
    ANSWER = "answer"
    CANCEL = "cancel"
