"""The tasks by name, and how a user's own comes in."""

from qdac.tasks.registry import check_task, make_task, task_names, task_summaries

__all__ = ["check_task", "make_task", "task_names", "task_summaries"]
