"""A worker of Ray that has imported everything and waits, so that a new replica has only to read its weights.

Ray imports the modules of ``RAY_preload_python_modules`` in every worker. It starts workers ahead of tasks
that wait, but none ahead of actors, which replicas are. So Ray is shown a task that waits for a resource that is taken
for good, and the task is withdrawn. Ray starts an idle worker for it, unless there is one. The next actor gets that.
"""

from __future__ import annotations

import time

import ray
from ray.util.placement_group import placement_group

_SHOWN = 0.5  # seconds that the task is shown: Ray is asked within milliseconds


def _never() -> None:
    """It waits for the object that ``Spares`` holds."""


class Spares:
    """For a Ray that was started with one ``resource`` of this name."""

    def __init__(self, resource: str) -> None:
        self._resource = {resource: 1}
        self._held = placement_group([self._resource])  # takes no process

    def ask(self) -> None:
        """Have a worker wait. Blocks for a moment; where one waits already, nothing happens."""
        self._held.wait(10)
        task = ray.remote(num_cpus=0, max_retries=0)(_never).options(resources=self._resource).remote()
        time.sleep(_SHOWN)
        ray.cancel(task)
