"""A run: one worktree, one record, one immutable revision.

The modules:

    clone         The clone of the repository, and what is kept beside it.
    workspace     Which folders of the repository are agents.
    beginning     Makes a repository a workspace.
    agent_folder  What an agent's folder holds.
    upgrade       What another version of agent-rft means for an agent.
    git           Git as a function.
    edits         The user's uncommitted work, which is copied into a run.
    records       What the clone remembers of each run.
    windows       A run's window, ingested once.
    engine        The engine with which a run works, as hashes.
    environment   The packages with which a run works.
    artifacts     Bytes of a recorded revision, found by hash.
    origin        How a recorded run began, from its revision.
    compare       Two runs side by side, from their revisions.
    transfer      Moves bytes between DVC's cache and DVC's remote.
    outbox        What a run sends to other systems, kept until they have taken it.
    console       What stages print, as plain lines.
    repro         One `dvc repro`, watched and never left behind.
    dvc_process   DVC as a child process, loaded once per run.
    champion      What is served now, as files.
    run           Starts or adopts a run, and records it.
    by_hand       Stages outside of any run.
"""
