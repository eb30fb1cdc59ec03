"""The one exception type whose message is meant for the user, and the checks that raise it."""

import difflib
from collections.abc import Iterable

SEEDS = 2**32
"""How many seeds there are: beyond them, random keys would repeat."""


class UserError(Exception):
    """Something the user can put right: one line saying what was expected, what came, what to do."""


def check_seed(seed: int) -> None:
    """Raises a UserError for a seed that has no random key of its own."""
    if not 0 <= seed < SEEDS:
        raise UserError(f"seed should be from 0 to {SEEDS - 1}, got {seed}")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'x'?" for the one of `known` that is most like `name`, "." if none is."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {nearest[0]!r}?" if nearest else "."


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """Returns the error for a name that is not in `known`, with the nearest match."""
    known = sorted(known)
    return UserError(f"unknown {kind} {name!r}{suggestion(name, known)} Known: {', '.join(known)}.{hint}")
