"""Arrays as Postgres reads them fastest from Python."""

from collections.abc import Iterable


def ids(values: Iterable[str]) -> str:
    """UUIDs as the text of an array, for `$1::text::uuid[]`, as `numbers`."""
    return f"{{{','.join(values)}}}"


def numbers(values: Iterable[int | None]) -> str:
    """Whole numbers as the text of an array, for `$1::text::bigint[]`.

    The driver asks of each element of a list, several times, whether it is a list itself: a third of what a row costs.
    """
    return f"{{{','.join(map(str, values)).replace('None', 'NULL')}}}"
