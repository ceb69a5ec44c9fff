"""`python -m rft STAGE`: run one pure stage on the files in this folder, as dvc.yaml does.

Five things happen first:

- From here on, all that the process prints and logs is cleared of secrets (`rft.secrets`).
- The process asks the kernel to kill it when its parent dies (`rft.process`). Otherwise a killed
  driver would leave an orphan that writes into a later run.
- It checks that Python imported the engine that this stage is to run with (rft/engine.py).
- It reads params.yaml. Three things end the stage before any compute is spent: a wrong key; a
  margin that can never be met (rft/grading/margins.py, rft/gate/pool.py); a prompt that the
  embedded policy could not read (rft/tools/unlearned.py).
- Stage `challenger` opens the test examples only for a look that is registered in the ledger.

An error is one message on stderr after `error: `, and an exit code that says who can fix it
(`rft.errors`).
"""

from __future__ import annotations

import argparse
import errno
import importlib
import shutil
import sys
from typing import TYPE_CHECKING

from rft import engine, files, secrets
from rft.errors import InfrastructureError, RftError, UserError
from rft.process import die_with

if TYPE_CHECKING:
    from rft.reports import ExamplesReport

STAGES = ("traffic", "drift", "examples", "policy", "baseline", "prompt", "train", "challenger", "gate")
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    secrets.guard()
    die_with()
    parser = argparse.ArgumentParser(
        prog="python -m rft", description="Run one stage of the ladder in the current folder."
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--params", default="params.yaml", help="the settings (default: params.yaml)")
    options = parser.parse_args(argv)
    try:
        engine.check(options.stage)
        _run(options.stage, options.params)
    except RftError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        message = f"stage {options.stage} was interrupted. Start it again: it continues from its last checkpoint."
        return _fail(message, INTERRUPTED)
    return 0


def _run(stage: str, params: str) -> None:
    from rft import config
    from rft.gate import pool
    from rft.grading import margins
    from rft.tools import unlearned

    try:
        settings = config.load(params)
        unlearned.check(settings)
        made = _examples(stage)
        margins.check(settings, num_test=made.counts["test"] if made else None)
        if made:
            pool.check(settings, made.slices["test"])
        if stage == "challenger":
            _assert_registered()
        importlib.import_module(f"rft.stages.{stage}").run(settings)
    except (OSError, RuntimeError) as error:
        if refused := _refused(error):
            raise InfrastructureError(refused) from None
        if not _is_full_disk(error):
            raise
        where = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
        remedy = "Free some space, then start again: finished stages and the last checkpoint are kept."
        raise InfrastructureError(f"the disk is full{where}. {remedy}") from None


def _examples(stage: str) -> ExamplesReport | None:
    """Read the report of stage `examples`, for a stage after it: where only a margin changed, DVC
    does not run `examples` again."""
    from rft import reports, stage_files

    if stage not in STAGES[STAGES.index("baseline") :] or not stage_files.path(reports.ExamplesReport).exists():
        return None
    return stage_files.read(reports.ExamplesReport)


def _assert_registered() -> None:
    """Raise UserError where no look at these test examples is registered. Anyone who looks by hand,
    again and again, finds a challenger that seems better."""
    from rft import commands, reports, stage_files

    opening, examples = stage_files.read(reports.Opening), stage_files.examples_file("test")
    if not opening.look or opening.test_sha256 != files.sha256(examples):
        which = "no look at them" if not opening.look else "only a look at others"
        raise UserError(
            f"{stage_files.path(reports.Opening)}: the test examples stay closed, because {which} is registered in the "
            f"ledger. A run registers its look, then opens them; repeating that look is free: {commands.command('run')}"
        )


def _refused(error: OSError | RuntimeError) -> str:
    """Say which file a read-only or failing file system refused; empty if it was something else."""
    if not isinstance(error, OSError) or error.filename is None:
        return ""
    if error.errno not in (errno.EROFS, errno.EPERM, errno.EIO):
        return ""
    remedy = "Make it writable again, then start again: finished stages and the last checkpoint are kept."
    return f"{error.filename}: {error.strerror}. {remedy}"


def _is_full_disk(error: OSError | RuntimeError) -> bool:
    """Tell whether the disk is full. When a folder is copied, the error names the reason for each
    file as text. When torch.save meets a full disk, it raises a RuntimeError without an errno
    ("unexpected pos"): then look at the disk itself."""
    if isinstance(error, shutil.Error):
        return f"[Errno {errno.ENOSPC}]" in str(error) or f"[Errno {errno.EDQUOT}]" in str(error)
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    state = files.state()
    return "pos" in str(error) and shutil.disk_usage(state if state.exists() else ".").free < 2**20


def _fail(message: str, code: int) -> int:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
