"""Finds a task by name, or by `module:name` for one that lives outside this package."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from qdac.errors import UserError, unknown_name
from qdac.tasks import locomotion
from qdac.types import Task


def make_task(name: str | Task, **options: Any) -> Task:
    """Returns the task called `name`.

    `options` are `backend`, `episode_length` and anything the Brax env takes (`reset_noise_scale`).
    A name with a colon, `my_module:my_task`, is a `Task`, or a function that returns one and takes
    the options, in a module that Python can import (the working directory included).
    """
    if isinstance(name, Task):
        return name
    if ":" in name:
        task = _import_task(name, options)
        check_task(task)
        return task
    if name not in locomotion.SPECS:
        raise unknown_name("task", name, locomotion.SPECS, " Your own: --task my_module:my_task.")
    try:
        return locomotion.make(name, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"task {name!r} does not take these options: {options} ({error})") from error


def _import_task(path: str, options: dict[str, Any]) -> Task:
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not module_name or module_name.startswith(".") or not attribute:
        raise UserError(f"expected a task as my_module:my_task, got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"task {path!r}: no module {error.name!r}; run where it can be imported or set PYTHONPATH"
        ) from error
    except Exception as error:  # Whatever the user's own code raises.
        raise UserError(f"task {path!r}: module {module_name!r} cannot be imported: {_said(error)}") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise UserError(f"task {path!r}: module {module_name!r} has no {attribute!r}")
    if isinstance(found, Task) and options:
        raise UserError(f"task {path!r} is a ready-made Task and takes no options, got {options}; give a function")
    try:
        task = found if isinstance(found, Task) else found(**options)
    except UserError:
        raise
    except Exception as error:  # Whatever the user's own code raises.
        raise UserError(f"task {path!r} could not be made with options {options}: {_said(error)}") from error
    if not isinstance(task, Task):
        raise UserError(f"task {path!r}: expected a qdac.Task, got {type(task).__name__}")
    return task


def _said(error: Exception) -> str:
    """Returns in one line what an error in the code of a task says, and where that code has it."""
    line = next(iter(str(error).splitlines()), "")
    text = line if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {line}"
    if isinstance(error, SyntaxError):
        return f"{text} ({error.filename}, line {error.lineno})"
    elsewhere = ("site-packages", os.path.dirname(importlib.__file__), str(Path(__file__).parents[1]), "<frozen")
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not any(part in frame.filename for part in elsewhere)
    ]
    return f"{text} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else text


def check_task(task: Task) -> None:
    """Raises a `UserError` that says what is wrong where the parts of a task do not fit together."""

    def expect(what: str, got: Any, expected: Any) -> None:
        if got != expected:
            raise UserError(f"task {task.name!r}: {what} should be {expected}, got {got}")

    try:
        state = jax.eval_shape(task.reset, jax.random.PRNGKey(0))
        action = jax.ShapeDtypeStruct((task.action_size,), jnp.float32)
        next_state = jax.eval_shape(task.step, state, action)
        feature = jax.eval_shape(task.feature, state)
    except UserError:
        raise
    except Exception as error:  # Whatever the user's own code raises.
        raise UserError(f"task {task.name!r}: reset, step or feature cannot be traced: {_said(error)}") from error
    obs_shape = (task.env.observation_size,)
    expect("state.obs at reset", state.obs.shape, obs_shape)
    expect("state.obs after step", next_state.obs.shape, obs_shape)
    expect("state.reward", next_state.reward.shape, ())
    expect("state.done", next_state.done.shape, ())
    expect("feature(state)", feature.shape, (task.skill_size,))
    expect("structure of the state after a step", jax.tree.structure(next_state), jax.tree.structure(state))
    before, after = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (state, next_state))
    for (path, old), (_, new) in zip(before, after, strict=True):
        expect(f"state{jax.tree_util.keystr(path)} after step", f"{new.dtype}{new.shape}", f"{old.dtype}{old.shape}")
    sample = jax.eval_shape(lambda key: task.skill_space.sample(key, 3), jax.random.PRNGKey(0))
    expect("skill_space.sample(key, 3)", sample.shape, (3, task.skill_size))
    for what, value in (("threshold", task.threshold), ("d_eval", task.d_eval)):
        if not value > 0:
            raise UserError(f"task {task.name!r}: {what} should be positive, got {value}")
    if task.episode_length < 1:
        raise UserError(f"task {task.name!r}: episode_length should be at least 1, got {task.episode_length}")
    if task.action_repeat < 1:
        raise UserError(f"task {task.name!r}: action_repeat should be at least 1, got {task.action_repeat}")
    if task.short_horizon < 2:
        raise UserError(f"task {task.name!r}: short_horizon should be at least 2 steps, got {task.short_horizon}")
