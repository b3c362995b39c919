"""Slurm's commands, for users who know them: each takes Slurm's options and asks a plane.

An option that cannot be honoured is refused, or said to be ignored, in one line. `dovetail slurm-commands`
writes small scripts with their names that call these.
"""

COMMANDS = {
    "sbatch": "dovetail.cli.slurm.sbatch:sbatch",
    "srun": "dovetail.cli.slurm.srun:srun",
    "squeue": "dovetail.cli.slurm.squeue:squeue",
    "scancel": "dovetail.cli.slurm.scancel:scancel",
    "sinfo": "dovetail.cli.slurm.sinfo:sinfo",
    "scontrol": "dovetail.cli.slurm.scontrol:scontrol",
}
