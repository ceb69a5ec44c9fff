"""May the challenger be served? A pure function from reports to promote, reject or inconclusive.

decide      the decision, and which candidate it is about
checks      the conditions, as one table: one of superiority, the others of non-inferiority
levels      at which level the question is asked, so that looking again is paid for
terms       what a look may cost, and which terms are looser than others
slices      the veto of a slice
sample_size how many more examples would settle what is open
pool        which slices are judged together
evidence    what is counted of an arm, as the statistics want it
"""
