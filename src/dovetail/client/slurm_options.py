"""The options that sbatch and srun of Slurm 24.05 know, and those of the plug-in Pyxis, by their long names.

One that has no counterpart here is ignored with a note. One that is not in this list is a typing error, or of
a plug-in, whose meaning we cannot know: it is refused.
"""

from __future__ import annotations

import difflib

SBATCH = frozenset(
    """
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint
    container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task
    deadline delay-boot dependency distribution error exclude exclusive export export-file extra
    extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task
    gres gres-flags help hint hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type
    mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue
    nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket
    oom-kill-step open-mode output overcommit oversubscribe parsable partition power prefer priority
    profile propagate qos quiet reboot requeue reservation resv-ports segment signal sockets-per-node
    spread-job stepmgr switches test-only thread-spec threads-per-core time time-min tmp tres-bind
    tres-per-task uid usage use-min-nodes verbose version wait wait-all-nodes wckey wrap
    """.split()  # noqa: SIM905
)
SRUN = frozenset(
    """
    accel-bind bcast bcast-exclude compress cpu-bind disable-status disable-stdout-job-summary epilog
    exact external-launcher het-group immediate interactive jobid join kill-on-bad-exit label mpi
    msg-timeout multi-prog no-allocate overlap preserve-env prolog pty relative send-libs slurmd-debug
    task-epilog task-prolog threads treewidth unbuffered whole x11
    """.split()  # noqa: SIM905
)
PYXIS = frozenset(
    """
    container-image container-mounts container-workdir container-name container-save container-mount-home
    no-container-mount-home container-remap-root no-container-remap-root container-entrypoint
    no-container-entrypoint container-writable container-readonly container-env
    """.split()  # noqa: SIM905
)
KNOWN = SBATCH | SRUN | PYXIS


def whole_name(name: str) -> str:
    """The option that a name stands for: as in Slurm, its beginning is enough if only one begins so."""
    begin_so = [known for known in SBATCH if known.startswith(name)]
    return begin_so[0] if name not in KNOWN and len(begin_so) == 1 else name


def unknown(written: str) -> str:
    """The error for an option that Slurm does not have.

    >>> unknown("--tiem")
    'unknown option --tiem; did you mean --time?'
    >>> unknown("--colour")
    'unknown option --colour, which Slurm does not have either; leave it out'
    """
    near = difflib.get_close_matches(written.lstrip("-"), SBATCH, n=1) if written.startswith("--") else []
    if near:
        return f"unknown option {written}; did you mean --{near[0]}?"
    return f"unknown option {written}, which Slurm does not have either; leave it out"
