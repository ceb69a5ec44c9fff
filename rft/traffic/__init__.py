"""Production traffic: what a log holds, once and for all, as columns; and what is chosen from it.

Production writes in many formats, into many files, and goes on writing. A run needs one window that
never changes. So the flow ingests a log once, streaming and in bounded memory, into a *snapshot*: a
folder of Parquet files with one row per conversation, and a manifest of hashes. Stages read nothing
else.

schema          the columns of a snapshot, and how rows are hashed
ingest          the whole way from a log to a snapshot; read this first
sources         the files of a log, wherever they lie
addresses       files at addresses, such as s3://bucket/logs
compressed      a file's text, as it streams
blocks          cuts a log into blocks of whole lines
pool, worker    spread blocks over processes
parts           makes a part of a block
lines           parses thousands of lines at once; what is in doubt goes to `normal`
normal          reads one row exactly
formats         the formats of logs, each recognized by content
columns         what profiles and contracts count
words, shapes   two of them: words of texts, and what a JSON text looks like
arrow           Arrow's functions on columns, without types
redact          replaces what nobody may store
quoting         quotes a log in a message without that
joins           keeps conversations whole
reading         the manifest, the columns, conversations
texts           what is read as text, and the words of it
feedback        chooses the graded conversations that become training examples
imitated        chooses the dialogues that training may imitate
leakage         finds inputs of a later split that nearly repeat an earlier one's
invented        writes invented traffic
"""
