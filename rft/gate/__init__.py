"""May the challenger be served? A pure function from reports to promote, reject or inconclusive.

decide      the decision, and which candidate it is about
checks      the conditions: one of superiority, several of non-inferiority
costs       of these, what a candidate costs: tokens, turns, unreadable calls, abstentions, lost
            rollouts
levels      at which level the question is asked, so that looking again is paid for
terms       what a look may cost, and which terms are looser than others
slices      the veto of a slice
more        how many more examples would settle what is open
pool        which slices are judged together
evidence    the rows of two arms, as the statistics want them
"""
