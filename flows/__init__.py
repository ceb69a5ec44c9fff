"""Wiring and decisions, no numbers computed: the ladder in one screen, and the command line.

`pipeline` is the whole ladder; `promotion` moves the champion after a person's word; `deploy` puts the ladder on a schedule. `cli` is the command
`rft`, and its verbs lie beside it: `running`, `cancel`, `listing`, `deciding`, `gc`, `rollouts` (also replay), `doctor`, `lookout` (drift alone),
`play`, `export`,
`new` and `demo`. They share `settings` (which params.yaml a run gets), `server` (a Prefect server as long as a command lasts), `screen` (bars) and
`results` (how a run ended). `template/` is the recipe that `rft new` copies.
"""
