"""What can go wrong with a checkpoint, as errors a training script may catch.

    CheckpointError
    |-- FencedError      this attempt is over: a newer one owns the job; never retried
    |-- SaveError        a checkpoint was not published; the ones before it are untouched
    `-- RestoreError     no checkpoint could be restored although some were asked for or exist

Every message is one sentence that names the place. Time plays no part here.
"""

EX_RESTART = 85
"""Exit code for "the state is saved, start me again"."""


class CheckpointError(Exception):
    """Base of everything `holdfast.checkpoint` raises on purpose."""


class FencedError(CheckpointError):
    """A newer attempt of this job has started, so this one may neither publish nor restore."""


class SaveError(CheckpointError):
    """A checkpoint could not be published (disk full, folder gone, a rank missing)."""


class RestoreError(CheckpointError):
    """A checkpoint could not be brought back into the state."""
