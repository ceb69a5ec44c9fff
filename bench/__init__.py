"""The figures that the project promises: what each is worth here, against its bound. `make figures`
lists them.

A module of this folder is one family of figures; its `FIGURES` names them. `bench/figure.py` runs
one, `bench/measure.py` holds what a figure returns, `bench/watch.py` runs a command and watches its
processes, `results/` is what was measured last.
"""
