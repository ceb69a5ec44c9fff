"""The only code that talks to Git, DVC, Prefect and MLflow: it turns pure stages into recorded runs.

In reading order: `clone` (where we are), `git`, `edits` (what of the user's work travels along), `records` and `runs` (a run: worktree,
adoption, revision), `stages` (one `dvc repro`, watched), `tracking` (MLflow), `artifacts` (bytes of a recorded revision), `registry` and
`ledger` (who is champion, and who said so). Beside them one module a stage, each a Prefect task of a few lines.
"""
