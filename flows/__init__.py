"""Wiring and decisions, no numbers computed: the ladder in one screen, and the command line.

`pipeline` is the whole ladder; `promotion` moves the champion after a person's word; `deploy` puts
the ladder on a schedule. `cli` is the command `rft`, a module per verb. They share `settings`
(which params.yaml a run gets), `server` (a Prefect server as long as a command lasts), `screen`
(bars), `results` (how a run ended) and `rollouts` (where rollouts are, and which are wanted).
`template/` is the recipe that `rft new` copies.
"""
