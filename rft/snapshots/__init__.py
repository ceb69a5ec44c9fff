"""Snapshots of production traffic: what a log holds, once and for all, as columns.

Production writes in many formats, into many files, and goes on writing. A run needs one window that
never changes. So the flow ingests a log once, streaming and in bounded memory, into a *snapshot*: a
folder of Parquet files with one row per conversation, and a manifest of hashes. Stages read nothing
else.

schema          the columns of a snapshot, and how rows are hashed
"""
