"""The figures that the project promises: each is measured, and compared with its bound.

`make figures` lists them. A module of this folder is one family of figures; its `FIGURES` names
them. `bench/figure.py` runs one. `bench/measure.py` defines what a figure returns.
`bench/watch.py` runs a command and watches its processes. `results/` holds the latest measurements.
"""
