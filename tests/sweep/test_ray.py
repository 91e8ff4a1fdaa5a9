"""A Ray cluster: its workers may be lost, the numbers may not change."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statetrack.sweep import run_many
from tests.sweep.cases import LONG, SHORT, Heard, Once, Whole, expect_the_same, kill, needs_proc


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine; the head takes no work."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'statetrack[ray]'")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"object_store_memory": 80 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small}
    )
    cluster.nodes = [cluster.add_node(num_cpus=1, **small) for _ in range(2)]
    os.environ["RAY_ADDRESS"] = cluster.address
    yield cluster
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()
    cluster.shutdown()


def test_no_ray_cluster_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'statetrack[ray]'")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as unused:  # bound, and nobody listens
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ValueError, match=f"no Ray cluster at RAY_ADDRESS={address}"):
            run_many([SHORT], tmp_path, launcher="ray")


@needs_proc
@pytest.mark.slow
def test_ray_loses_a_worker(cluster: Any, tmp_path: Path, whole: Whole) -> None:
    killer = Once(tmp_path / LONG.fingerprint, kill)
    killer.start()
    heard = Heard()
    sweep = run_many([LONG, SHORT], tmp_path, launcher="ray", watch=heard)
    assert killer.done
    expect_the_same(sweep, whole, [LONG, SHORT])
    assert sweep.runs[0].info["resumed_at"] >= 40  # it was lost, and went on from a checkpoint
    assert sorted(heard.over) == sorted([LONG.fingerprint, SHORT.fingerprint])
    assert heard.rows[LONG.fingerprint]


@needs_proc
@pytest.mark.slow
def test_ray_loses_a_node(cluster: Any, tmp_path: Path, whole: Whole) -> None:
    def remove_its_node(worker: int) -> None:
        raylet = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")")[-1].split()[1])
        (node,) = [node for node in cluster.nodes if raylet == raylet_of(node)]
        cluster.remove_node(node, allow_graceful=False)

    killer = Once(tmp_path / LONG.fingerprint, remove_its_node)
    killer.start()
    sweep = run_many([LONG], tmp_path, launcher="ray")
    assert killer.done
    expect_the_same(sweep, whole, [LONG])
    assert sweep.runs[0].info["resumed_at"] >= 40


def raylet_of(node: Any) -> int:
    (info,) = node.all_processes["raylet"]
    return info.process.pid
