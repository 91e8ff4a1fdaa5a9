"""A SLURM cluster of one machine, started in a folder of its own: munged, slurmctld and slurmd.

It needs root and Debian's slurm-wlm, which is installed if CI asks for it; see `why_not`.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "slurm-wlm", "munge"]
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=2
ReturnToService=2
KillWait=2
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=60 State=UP
"""


def why_not() -> str | None:
    """Why there can be no cluster here; None if there can."""
    if os.geteuid() != 0:
        return "a SLURM cluster needs root"
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if not missing:
        return None
    if not os.environ.get("CI") or shutil.which("apt-get") is None:
        return f"SLURM is not installed ({missing[0]}): apt-get install slurm-wlm"
    for command in (["apt-get", "update"], INSTALL):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"slurm-wlm cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    return None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@contextlib.contextmanager
def running() -> Iterator[Path]:
    """Its folder. SLURM_CONF points to it while it runs."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    folder.chmod(0o755)  # munged trusts no socket below a folder that others may write to
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    text = CONF.format(
        host=host, folder=folder, ports=(free_port(), free_port()), cpus=os.cpu_count()
    )
    (folder / "slurm.conf").write_text(text)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    munged = ["munged", "--foreground", "--force"]
    for option in ("socket", "key-file", "pid-file", "log-file", "seed-file"):
        name = "munge.sock" if option == "socket" else f"munge.{option.removesuffix('-file')}"
        munged.append(f"--{option}={folder / name}")
    daemons = []
    try:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            with (folder / f"{command[0]}.out").open("w") as out:
                daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            time.sleep(1)
        deadline = time.monotonic() + 60
        state = ["sinfo", "--noheader", "--format=%T"]
        while True:
            done = subprocess.run(state, env=environment, capture_output=True, text=True)
            if done.stdout.strip() in ("idle", "mixed", "allocated"):
                break
            if time.monotonic() > deadline:
                logs = [p.read_text()[-500:] for p in folder.glob("*.out")]
                pytest.skip(f"SLURM does not start here: {done.stdout}{done.stderr}{logs}")
            time.sleep(0.5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
            yield folder
    finally:
        _empty_the_queue(environment)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _empty_the_queue(environment: dict[str, str]) -> None:
    """Ends what still runs, or is still ending: processes of a job outlive the daemons."""
    subprocess.run(["scancel", "--full", "--user=root"], env=environment, capture_output=True)
    deadline = time.monotonic() + 20
    queue = ["squeue", "--noheader", "--format=%i"]
    while time.monotonic() < deadline:
        done = subprocess.run(queue, env=environment, capture_output=True, text=True)
        if done.returncode or not done.stdout.strip():
            return
        time.sleep(0.5)
