"""Read logs of production traffic once, keep them as columns, and choose examples from them.

Production writes in many formats, into many files, and goes on writing. A run needs one window that
never changes. So the flow ingests a log once, as a stream and in bounded memory, into a *snapshot*.
A snapshot is a folder of Parquet files with one row per conversation, and a manifest of hashes.
Stages read nothing else.

    schema          the columns of a snapshot, and how rows are hashed
    ingest          the whole way from a log to a snapshot; read this first
    sources         finds the files of a log, local or at an address
    addresses       reads files at addresses, such as s3://bucket/logs
    compressed      decompresses a file as it streams
    blocks          cuts a log into blocks of whole lines
    pool, worker    spread blocks over processes
    parts           makes a part from a block
    lines           parses thousands of lines at once; doubtful lines go to `normal`
    normal          reads one row exactly
    formats         the formats of logs, each recognized by content
    columns         what profiles and contracts count
    words, shapes   two kinds of columns: words of texts, and the shape of a JSON text
    arrow           Arrow's functions on columns, without types
    redact          replaces what nobody may store
    quoting         quotes a log in a message without what nobody may store
    joins           keeps conversations whole
    reading         reads the manifest, the columns and conversations of a snapshot
    texts           turns what people write into words
    feedback        chooses the graded conversations that become training examples
    imitated        chooses the dialogues that training may imitate
    leakage         finds inputs that nearly repeat an input of an earlier split
    invented        writes invented traffic
"""
