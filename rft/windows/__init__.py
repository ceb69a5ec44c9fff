"""Windows of production traffic: how they are read, described and compared.

conversations   parse logs of several formats into conversations
features        name what of a conversation is counted, and in which bins
bins, labels    count numbers and values, the same for any split of the rows
arguments       check the arguments of tool calls against the tools' schemas
words, sample   choose what is read as text, and split it into words
counting        count the parts of a snapshot, and sum the counts
parts           read the parts, as tasks for processes or Spark
engines, spark  apply a function here, in processes, or on Spark
encoder         turn sentences into vectors
profile         describe a window by the distributions of its features
comparison      compare two profiles, and decide which features drifted
apart           measure how far apart the two sides of a feature are: effects, text, embedding
noise           draw how far chance alone puts two windows apart, by group of users
shown           say what moved, in words and bars
contracts       state what every window must fulfill, as Great Expectations checks
objects         count conversations in memory, until all stages read snapshots
"""
