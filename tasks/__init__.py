"""The only code that talks to Git, DVC, Prefect and MLflow: it turns pure stages into recorded
runs.

runs           a run: its worktree, its stages by `dvc repro`, its record and revision
display        what MLflow and Prefect show of it
ledger         who decided what, as a chain of signed commits
notify         tells that a request waits for approval, and that a scheduled run failed
promotion      who is champion, and who said so
provenance     what a version says of itself in the formats of others
stages         one Prefect task per stage, a few lines each
stage_runner   what the tasks of all stages have in common
cancel         the end of a run before its end
retention      what may be removed, and what never
export         an agent in a folder of its own
audit          what a version rests on, and what rests on a conversation
backup         a folder with all that a clone knows, and a clone made from it
dependencies   writes dvc.yaml
pins           writes the lock by which `make setup` installs
"""
