"""The only code that talks to Git, DVC, Prefect and MLflow.

It turns pure stages into recorded runs:

    runs           A run: its worktree, its stages by `dvc repro`, its record and revision.
    display        What MLflow and Prefect show of a run.
    ledger         Who decided what, as a chain of signed commits.
    notify         Tells people that a request waits for approval, or that a scheduled run failed.
    promotion      Which version is champion, and who decided that.
    provenance     Describes a version in the formats of other tools.
    stages         One Prefect task per stage, a few lines each.
    stage_runner   What the tasks of all stages have in common.
    cancel         Ends a run early.
    retention      What may be removed, and what must stay.
    export         Writes an agent into a folder of its own.
    audit          What a version rests on, and what rests on a conversation.
    backup         Saves all that a clone knows in a folder, and makes a clone from it.
    dependencies   Writes dvc.yaml.
    pins           Writes the lock file that `make setup` installs from.
"""
