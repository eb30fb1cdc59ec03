"""The tasks by name, and how a user's own comes in."""

import contextlib
import io

with contextlib.redirect_stdout(io.StringIO()):  # MuJoCo prints that it found no Warp, which we do not use.
    from qdac.tasks.registry import check_task, make_task

__all__ = ["check_task", "make_task"]
