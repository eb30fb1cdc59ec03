"""The one exception type whose message is meant for the user, and the checks that raise it."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: one line saying what was expected, what came, what to do."""


def unknown_name(kind: str, name: str, known: Iterable[str], hint: str = "") -> UserError:
    """Returns the error for a name that is not in `known`, with the nearest match."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    suggestion = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return UserError(f"unknown {kind} {name!r}{suggestion} Known: {', '.join(known)}.{hint}")
