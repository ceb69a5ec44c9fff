"""The only code that talks to Git, DVC, Prefect and MLflow: it turns pure stages into recorded runs.

In reading order: `clone` (where we are), `git`, `edits` (what of the user's work travels along), `records` and `runs` (a run: worktree, adoption,
revision), `stages` (one `dvc repro`, watched) and `lines` (what it prints), `tracking` (MLflow), `traces` (rollouts as MLflow shows them),
`artifacts` (bytes of a recorded revision), `byhand` (one stage outside of any run), `champion` (what is served, as files), `registry` and
`ledger` (who is champion, and who said so), `agents` and `export` (any of them in a folder of its own), `climb` (what every rung has in common),
`cancel` (the end of a run before its end), `retention` (what may be removed, and what never). Beside them one module a stage, each a Prefect task
of a few lines. `dependencies` writes dvc.yaml.
"""
