"""The ledger: who decided what about which model, as a chain of signed Git commits.

    refs/rft/ledger    one commit per entry, the newest on top; its first parent is the entry before
        entry.json        what happened: canonical JSON, with the SHA-256 of the entry before
        policy.yaml       people, machines, roles and rules, as they stand after this entry
        allowed_signers   every key that was ever enrolled, in OpenSSH's format
        statement.json    what a person signed, where a person decided
        statement.sig     that signature

The clone's machine key signs every commit. A person signs a statement, not a commit, so an approval
stays valid when other entries come in between. Entry n is judged by the policy of entry n-1, so
time is the position in the chain. `docs/verify-ledger.sh` checks all this with only Git and
ssh-keygen.

    keys             SSH keys of machines and people: find, make, sign, verify.
    policy           People, machines, roles, rules.
    statement        What a person signs.
    entry            What an entry says.
    describe         An entry in one line.
    objects          Git objects, each hashed again when read.
    chain            The commits of the chain: read, make.
    locks            Removes locks that a killed Git left on the ledger's refs.
    state            The result of a chain of entries.
    facts            Its parts: statements, requests, looks, champions.
    approval_status  Which approvals and overrides of a request count at a given time.
    key_compromise   Which entries rest on a compromised key.
    authorise        The one function that decides whether an entry may stand.
    spending         How much of alpha earlier looks at the same examples have spent.
    request_status   The status of a request: it waits for people, or cannot be approved any more.
    verify           Judges a chain from Git, entry by entry.
    memory           What this clone has verified and seen before.
    remote           The branch that several clones share.
    clocks           Decides whether this machine's clock is right enough to append.
    anchors          Evidence from outside the chain that it is whole.
    book             All of it together: opens the ledger, appends to it.
    checks           What `rft doctor` checks.
    restart          Goes on when the last owner's key is lost.
"""
