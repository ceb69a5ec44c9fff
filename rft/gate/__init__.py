"""Decide whether the challenger may be served: a pure function from reports to a decision.

The decision is promote, reject or inconclusive. The modules:

    decide       the decision, and which candidate it is about
    checks       the conditions, as one table: one of superiority, the others of non-inferiority
    levels       the level at which the question is asked, so that looking again has its price
    terms        what a look may cost, and which terms are looser than others
    slices       the veto of a slice
    sample_size  how many more examples would settle what is open
    pool         which slices are judged together
    evidence     what is counted of an arm, in the form that the statistics need
"""
