"""Runs on a Ray cluster."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statetrack.sweep.launcher import Group, needed, train_group

__all__ = ["Ray"]

CONNECT_S = 10.0


class Ray:
    """A Ray cluster: the one this process is connected to, or the one that `ray.init` finds.

    `ray.init` takes the cluster that RAY_ADDRESS names, else one that runs on this machine, else it
    starts one here. Each job takes one CPU of it, and one GPU if it trains on GPUs.
    """

    losses = 3

    def __init__(self) -> None:
        self._ray = needed("ray", "ray", "Ray")
        self._connected_here = False

    def submit(self, groups: Sequence[Group], root: Path, device: str) -> list[Any]:
        if not self._ray.is_initialized():
            _refuse_silence(os.environ.get("RAY_ADDRESS", ""))
            self._ray.init(logging_level="warning", log_to_driver=False)
            self._connected_here = True
        gpus = 0 if device == "cpu" else 1
        # Ray would start a lost job again without asking whether that leads anywhere.
        job = self._ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(train_group)
        return [job.remote(list(group), str(root), device) for group in groups]

    def ended(self, jobs: Sequence[Any], timeout: float) -> list[Any]:
        self._ray.wait(list(jobs), num_returns=1, timeout=timeout)
        return self._ray.wait(list(jobs), num_returns=len(jobs), timeout=0)[0]

    def reason(self, job: Any) -> str:
        try:
            self._ray.get(job)
        except self._ray.exceptions.RayError as error:
            return str(error)
        return "the job returned"

    def cancel(self, job: Any) -> None:
        self._ray.cancel(job, force=True)

    def close(self) -> None:
        if self._connected_here:
            self._ray.shutdown()
            self._connected_here = False


def _refuse_silence(address: str) -> None:
    """Raises if nobody listens at `host:port`, where Ray itself would try for many minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # "auto", or an address for Ray to understand
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster at RAY_ADDRESS={address}: {error}") from None
