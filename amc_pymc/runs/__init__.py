"""One engine for runs: a pool of workers, a journal on disk with fingerprints, and a loop of batches."""

from amc_pymc.runs.fingerprints import fingerprint, name_of
from amc_pymc.runs.journal import Journal, begin_journal
from amc_pymc.runs.pool import Ended, JobReport, Pool, number_of_cores, run_jobs, run_loop
from amc_pymc.runs.processes import TRIES, Task, WorkerDied

__all__ = [
    "TRIES",
    "Ended",
    "JobReport",
    "Journal",
    "Pool",
    "Task",
    "WorkerDied",
    "begin_journal",
    "fingerprint",
    "name_of",
    "number_of_cores",
    "run_jobs",
    "run_loop",
]
