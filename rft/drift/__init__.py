"""Describe a window of production traffic, check it, and compare it with others.

Its modules:

    features        name what is counted of a conversation, and in which bins
    owners          say to whom a row belongs: to a group of users, and to a day
    bins, labels    count numbers and values, the same for any split of the rows
    arguments       check the arguments of tool calls against the tools' schemas
    sample          choose the conversations that are read as text
    counting        count the parts of a snapshot, and sum the counts
    parts           read the parts, as tasks for processes or Spark
    engines, spark  apply a function here, in processes, or on Spark
    encoder         turn sentences into vectors
    profile         describe a window by the distributions of its features
    references      find the profiles that a window is compared with
    comparison      compare two profiles, and decide which features drifted
    distance        measure how far apart the two sides of a feature are
    effects         measure it for two histograms
    text            measure it for conversations, by how well a classifier tells them apart
    discrepancy     measure it for embeddings, by the maximum mean discrepancy
    noise           draw how far chance alone puts two windows apart, by group of users
    shown           say what moved, in words and bars
    carriers        find the conversations that carry a drift
    contracts       state what every window must fulfill, as Great Expectations checks
    expectations    add what Great Expectations cannot count
    validation      validate tables piece by piece
"""
