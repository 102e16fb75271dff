"""What a doctor found: one line for each thing it looked at, and how to cure what is wrong."""

import argparse
import json
import sys
from collections.abc import AsyncIterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final


class Verdict(StrEnum):
    """How something stands."""

    WELL = "well"
    DOUBTFUL = "doubtful"
    """It works, and will not always."""
    WRONG = "wrong"
    """Something that is promised is not so."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. What is not well has a cure."""

    subject: str
    verdict: Verdict
    text: str
    cure: str = ""


_MARKS: Final = {Verdict.WELL: "ok   ", Verdict.DOUBTFUL: "doubt", Verdict.WRONG: "WRONG"}


def well(subject: str, text: str) -> Finding:
    """Something is as it should be."""
    return Finding(subject, Verdict.WELL, text)


def doubtful(subject: str, text: str, cure: str) -> Finding:
    """Something will go wrong some day."""
    return Finding(subject, Verdict.DOUBTFUL, text, cure)


def wrong(subject: str, text: str, cure: str) -> Finding:
    """Something is wrong now."""
    return Finding(subject, Verdict.WRONG, text, cure)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds how findings are printed."""
    parser.add_argument("--output", choices=("text", "json"), help="default: text on a terminal, json elsewhere")


async def tell_findings(findings: AsyncIterable[Finding], output: str | None) -> int:
    """Prints each finding as it comes: as text, or as a line of JSON. Returns the exit code: 1 if anything is wrong."""
    code, as_json = 0, output == "json" or (output is None and not sys.stdout.isatty())
    async for one in findings:
        if one.verdict is Verdict.WRONG:
            code = 1
        if as_json:
            sys.stdout.write(json.dumps(asdict(one)) + "\n")
        else:
            sys.stdout.write(f"{_MARKS[one.verdict]}  {one.subject}: {one.text}\n")
            if one.cure:
                sys.stdout.write(f"         {one.cure}\n")
    return code
