"""Read logs of traffic, compare windows of it, or invent some.

  rft traffic ingest data/inbox/2026-W14.jsonl     what is in this log, as a run would read it?
  rft traffic drift data/inbox/2026-W14.jsonl      is this week like the training examples?
  rft traffic invent                               a window to try the ladder with

docs/traffic.md says which formats are read, docs/drift.md how to read a verdict.
"""
