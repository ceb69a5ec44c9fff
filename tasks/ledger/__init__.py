"""The ledger: who decided what about which model, as a chain of signed Git commits.

    refs/rft/ledger    one commit per entry, the newest on top; its first parent is the entry before
        entry.json        what happened: canonical JSON, with the SHA-256 of the entry before
        policy.yaml       people, machines, roles and rules, as they stand after this entry
        allowed_signers   every key that was ever enrolled, in OpenSSH's format
        statement.json    what a person signed, where a person decided
        statement.sig     that signature

A machine key of the clone signs every commit. A person signs a statement, not a commit, so that an
approval stays valid when other entries come in between. Entry n is judged by the policy of entry
n-1, so time is the position in the chain. `docs/verify-ledger.sh` checks all this with Git and
ssh-keygen alone.

keys             SSH keys of machines and people: find, make, sign, verify
policy           people, machines, roles, rules
statement        what a person signs
entry            what an entry says
describe         an entry in one line
objects          Git objects, each hashed again when read
chain            the commits of the chain: read, make
locks            what a killed Git left on the ledger's refs
state            what a chain of entries amounts to
facts            its parts: statements, requests, looks, champions
approval_status  which approvals and overrides of a request count at a moment
key_compromise   which entries rest on a compromised key
authorise        the one function that decides whether an entry may stand
spending         what looks at the same examples have spent of alpha
request_status   what became of a request: it waits for people, or cannot be approved any more
verify           a chain from Git, judged entry by entry
memory           what this clone has verified and seen before
remote           the branch that several clones share
clocks           may this machine append, by its clock?
anchors          what tells from outside the chain that it is whole
book             all of it together: open the ledger, append to it
checks           what `rft doctor` looks at
restart          go on when the last owner's key is lost
"""
