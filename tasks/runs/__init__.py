"""A run: one worktree, one record, one immutable revision.

clone       the clone of the repository, and what is kept beside it
workspace   which of its folders are agents
beginning   a repository becomes a workspace
agent_folder what such a folder holds
upgrade     what another version of agent-rft means for it
git         Git as a function
edits       the user's uncommitted work, which travels along
records     what the clone remembers of each run
windows     its window, ingested once
engine      with which engine it works, as hashes
environment with which packages it works
artifacts   bytes of a recorded revision, found by hash
origin      how a recorded run began, from its revision
compare     two runs side by side, from their revisions
transfer    these bytes between DVC's cache and DVC's remote
outbox      what a run tells others, kept until they have taken it
console     what stages print, as plain lines
repro       one `dvc repro`, watched and never left behind
dvc_process DVC as a child process, loaded once per run
champion    what is served now, as files
run         a run: start or adopt it, record it
by_hand     stages outside of any run
"""
