"""The page /stacksz: the current stacks of all threads and tasks."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback

__all__ = ["stacks"]

_TASKS_MAX = 200
"""Bound on the tasks shown: there is one for each consumer, and each costs the loop about 0.1 ms."""


def stacks() -> str:
    """Return the stacks of all threads, and of the tasks of the running loop."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        text.write(f'thread "{names.get(ident, ident)}":\n{"".join(traceback.format_stack(frame))}\n')
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    text.write(f"{len(tasks)} tasks\n\n")
    for task in tasks[:_TASKS_MAX]:
        text.write(f'task "{task.get_name()}":\n')
        for frame in task.get_stack(limit=8):
            text.write("".join(traceback.format_stack(frame, limit=1)))
        text.write("\n")
    return text.getvalue()
