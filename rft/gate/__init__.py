"""May the challenger be served? A pure function from reports to promote, reject or inconclusive.

decide      the decision, and which candidate it is about
checks      the conditions: one of superiority, several of non-inferiority
evidence    the rows of two arms, as the statistics want them
"""
