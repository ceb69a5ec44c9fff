"""The flows and the command line: wiring and decisions. No number is computed here.

`pipeline` is the ladder in one screen. `extension` plans a second look at an inconclusive run.
`promotion` moves the champion when a person says so. `deploy` runs the ladder on a schedule, and
`unattended` notifies people when a scheduled run failed. `cli` is the command `rft`, with a module
per verb.

These modules serve several verbs:

    settings      which params.yaml a run gets
    server        a Prefect server while a command runs
    screen        progress bars
    results       how a run ended
    comparison    two runs side by side
    audit, drift  how an audit and a drift report are shown
    rollouts      find and filter rollouts

`template/` is the recipe that `rft new` copies.
"""
