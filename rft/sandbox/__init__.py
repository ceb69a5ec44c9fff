"""Sandbox: the place where code that a model wrote runs.

    sandbox    the interface: create, exec, files, snapshots, branches
    command    what the program sees, and the command lines that start it
    call       runs one command line to its end
    limits     limits memory, processes and time, by cgroups or a watchdog
    seccomp    the filter of system calls
    workspace  the files of a rollout over a shared base; snapshots and changes
    programs   the programs that make a sandbox, and how they are found
    keeper     the small program that mounts workspaces
    reading    reads and writes, from outside, files that hostile code left
    probe      finds out what this machine guarantees

Loads without torch.
"""
