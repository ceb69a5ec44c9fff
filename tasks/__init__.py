"""The only code that talks to Git, DVC, Prefect and MLflow: it turns pure stages into recorded
runs.

runs           a run: its worktree, its stages by `dvc repro`, its record and revision
display        what MLflow shows of it
ledger         who decided what, as a chain of signed commits
notify         tells that a request waits for approval, and that a scheduled run failed
promotion      who is champion, and who said so
stages         one Prefect task per stage, a few lines each
ladder         what the tasks of all stages have in common
cancel         the end of a run before its end
retention      what may be removed, and what never
export         an agent in a folder of its own
dependencies   writes dvc.yaml
"""
